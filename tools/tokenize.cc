// tapehead tokenize: train a tokenizer, and turn texts into tokens and back.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/models/text.h"
#include "tapehead/models/token_file.h"
#include "tapehead/models/tokenizer.h"
#include "tapehead/tools/commands.h"
#include "tapehead/tools/data_progress.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/progress_line.h"
#include "tapehead/tools/run_folder.h"

namespace tapehead {

namespace {

struct TokenizeOptions {
  std::string text, tokenizer, input = "-", out;
  int64_t vocab_size = 8192;
  bool special_tokens = false;
};

std::string read_input(const std::string& path) {
  if (path != "-") return read_file(path);
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

/// From its own folder or a run's.
Tokenizer load_tokenizer(const std::string& folder) {
  const RunFolder run = {folder};
  return Tokenizer::load(std::filesystem::exists(run.tokenizer()) ? run.tokenizer() : folder);
}

void train(const TokenizeOptions& options) {
  ProgressLine progress;
  const Tokenizer tokenizer =
      Tokenizer::train(read_text(options.text), options.vocab_size, tell_on(progress).on_merge);
  progress.clear();
  tokenizer.save(options.out);
  fmt::print("a vocabulary of {} tokens, written to {}\n", format_count(tokenizer.vocab_size()), options.out);
}

void encode(const TokenizeOptions& options) {
  const Tokenizer tokenizer = load_tokenizer(options.tokenizer);
  const std::string text = read_input(options.input);
  std::vector<int32_t> ids;
  if (options.special_tokens && tokenizer.beginning_of_text()) ids.push_back(*tokenizer.beginning_of_text());
  ProgressLine progress;
  Tokenizer::Encoder(tokenizer, options.special_tokens ? SpecialTokens::recognized : SpecialTokens::as_text,
                     [&](int64_t done) { progress.show_bytes("encoding", done, std::ssize(text)); })
      .encode(text, &ids);
  progress.clear();
  if (options.out.empty()) {
    fmt::print("{}\n", fmt::join(ids, " "));
  } else {
    TokenFile::write(options.out, ids, tokenizer.vocab_size(), tokenizer.hash());
    fmt::print("{} bytes became {} tokens, written to {}\n", format_count(std::ssize(text)),
               format_count(std::ssize(ids)), options.out);
  }
}

std::vector<int32_t> parse_ids(std::string_view text) {
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto is_space = [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; };
  for (;;) {
    while (at != end && is_space(*at)) ++at;
    if (at == end) return ids;
    int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    check<ValueError>(
        error == std::errc() && (next == end || is_space(*next)),
        "[tokenize] {} is no token: give numbers with spaces between them, or a file of `tapehead tokenize "
        "encode --out`",
        std::string_view(at, std::find_if(at, end, is_space)));
    ids.push_back(id);
    at = next;
  }
}

void decode(const TokenizeOptions& options) {
  const Tokenizer tokenizer = load_tokenizer(options.tokenizer);
  std::vector<int32_t> ids;
  const std::string input = read_input(options.input);
  if (options.input != "-" && input.starts_with(TokenFile::kMagic)) {
    const TokenFile file = TokenFile::open(options.input, tokenizer.vocab_size(), tokenizer.hash());
    for (int64_t i = 0; i < file.size(); ++i) ids.push_back(file[i]);
  } else {
    ids = parse_ids(input);
  }
  const std::string text = tokenizer.decode(ids);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

void add_tokenize(Command program) {
  Command tokenize = program.add_command("tokenize", "Train a tokenizer, turn text into tokens and back");
  const auto options = std::make_shared<TokenizeOptions>();
  tokenize.require_command();
  tokenize.footer(
      "Example:\n"
      "  tapehead tokenize train --text book.txt --vocab-size 4096 --out tokenizer\n"
      "  tapehead tokenize encode tokenizer book.txt --out book.tokens\n"
      "  echo 'a line' | tapehead tokenize encode tokenizer | tapehead tokenize decode tokenizer");

  Command train_command = tokenize.add_command("train", "Learn a byte-level BPE vocabulary from a text");
  train_command.add_option("--text", options->text, "file to learn from").type_name("FILE").required();
  train_command.add_option("--vocab-size", options->vocab_size, "tokens, 257 or more").show_default();
  train_command.add_option("--out", options->out, "folder for tokenizer.json and its like")
      .type_name("FOLDER")
      .required();
  train_command.footer(
      "Example:\n  tapehead tokenize train --text book.txt --vocab-size 4096 --out tokenizer");
  train_command.callback([=] { train(*options); });

  const auto add_input = [&](Command command, const char* what) {
    command.add_option("TOKENIZER", options->tokenizer, "folder of a tokenizer or of a run").required();
    command.add_option("FILE", options->input, what).show_default();
  };
  Command encode_command = tokenize.add_command("encode", "Print the tokens of a text as numbers");
  add_input(encode_command, "text, any bytes; - is standard input");
  encode_command.add_option("--out", options->out, "write a token file for `tapehead train --tokens` instead")
      .type_name("FILE");
  encode_command.add_flag(
      "--special-tokens", options->special_tokens,
      "take <|endoftext|> and the like for the tokens they name, and put the beginning of "
      "text in front where the model expects it");
  encode_command.footer("Example:\n  tapehead tokenize encode runs/book book.txt --out book.tokens");
  encode_command.callback([=] { encode(*options); });

  Command decode_command = tokenize.add_command("decode", "Print the text of tokens");
  add_input(decode_command, "numbers, or a token file; - is standard input");
  decode_command.footer("Example:\n  echo 72 101 108 108 111 | tapehead tokenize decode runs/book");
  decode_command.callback([=] { decode(*options); });
}

}  // namespace tapehead
