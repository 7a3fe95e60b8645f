#include "tapehead/tools/run_folder.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/models/text.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/progress_line.h"

namespace tapehead {

namespace {

using nlohmann::json;

/// FNV-1a (Fowler, Noll and Vo), to notice that a text has changed.
std::string fingerprint(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return fmt::format("{:016x}", hash);
}

std::string file_name(const std::string& path) { return std::filesystem::path(path).filename().string(); }

std::string absolute_or_empty(const std::string& path) {
  return path.empty() ? "" : std::filesystem::absolute(path).string();
}

/// Everything that the tokens depend on; the name of a text's file is not part of it.
json recipe(const DataOptions& options, std::string_view text) {
  if (text.empty()) {
    return {{"tokens", absolute_or_empty(options.tokens)},
            {"held_out_tokens", absolute_or_empty(options.held_out_tokens)},
            {"tokenizer", absolute_or_empty(options.tokenizer)}};
  }
  json made_from = {{"text_bytes", text.size()},
                    {"text_fingerprint", fingerprint(text)},
                    {"held_out", options.held_out},
                    {"split_seed", options.split_seed}};
  if (options.tokenizer.empty()) {
    made_from["vocab_size"] = options.vocab_size;
  } else {
    made_from["tokenizer"] = absolute_or_empty(options.tokenizer);
  }
  return made_from;
}

/// Writes the tokenizer and both token files of a text.
void encode_text(const RunFolder& run, const DataOptions& options, std::string_view text) {
  TextSplit split;
  if (options.held_out > 0) {
    split = split_held_out(text, options.held_out, static_cast<uint64_t>(options.split_seed));
  } else {
    split.training = text;
  }
  const Tokenizer tokenizer = options.tokenizer.empty() ? train_tokenizer(split.training, options.vocab_size)
                                                        : Tokenizer::load(options.tokenizer);
  make_folder(run.path);
  tokenizer.save(run.tokenizer());
  TokenFile::write(run.training_tokens(), tokenizer.encode(split.training), tokenizer.vocab_size());
  if (!split.held_out.empty()) {
    TokenFile::write(run.held_out_tokens(), tokenizer.encode(split.held_out), tokenizer.vocab_size());
  }
}

/// Keeps a copy of the tokenizer that token files were made with.
void adopt_tokens(const RunFolder& run, const DataOptions& options) {
  make_folder(run.path);
  if (!options.tokenizer.empty()) Tokenizer::load(options.tokenizer).save(run.tokenizer());
}

/// data.json, with all its fields there.
json read_data_file(const RunFolder& run) {
  check<ValueError>(std::filesystem::exists(run.data()), "[data] {} holds no run; `tapehead train` makes one",
                    run.path);
  json file = json::parse(read_file(run.data()), nullptr, /*allow_exceptions=*/false);
  bool whole = file.is_object() && file.contains("made_from") && file.at("made_from").is_object();
  for (const char* key : {"name", "training_tokens", "held_out_tokens"}) {
    whole = whole && file.contains(key) && file.at(key).is_string();
  }
  check<ValueError>(whole, "[data] {} is damaged; remove it, and `tapehead train` makes it anew", run.data());
  return file;
}

}  // namespace

Tokenizer train_tokenizer(std::string_view text, int64_t vocab_size) {
  ProgressLine progress;
  return Tokenizer::train(text, vocab_size, [&](int64_t done, int64_t limit) {
    if (progress.due())
      progress.show(fmt::format("tokenizer  {} of {} merges", format_count(done), format_count(limit)));
  });
}

void check_new_folder(const std::string& path) {
  std::error_code unseen;
  check<ValueError>(!std::filesystem::exists(path, unseen) || std::filesystem::is_empty(path, unseen),
                    "{} is there and not empty; name another folder", path);
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  check<SystemError>(!error && std::filesystem::is_directory(path), "cannot make the folder {}: {}", path,
                     error ? error.message() : "a file is in its place");
}

RunData prepare_data(const RunFolder& run, const DataOptions& options) {
  const std::string text = options.text.empty() ? "" : read_text(options.text);
  const json made_from = recipe(options, text);
  const bool reused = std::filesystem::exists(run.data());
  if (reused) {
    check<ValueError>(read_data_file(run).at("made_from") == made_from,
                      "[data] {} holds tokens of another text, vocabulary or split; give another folder, or "
                      "remove this one",
                      run.path);
  } else {
    json file = {{"name", file_name(options.text.empty() ? options.tokens : options.text)},
                 {"made_from", made_from}};
    if (options.text.empty()) {
      adopt_tokens(run, options);
      file["training_tokens"] = absolute_or_empty(options.tokens);
      file["held_out_tokens"] = absolute_or_empty(options.held_out_tokens);
    } else {
      encode_text(run, options, text);
      file["training_tokens"] = file_name(run.training_tokens());
      file["held_out_tokens"] = options.held_out > 0 ? file_name(run.held_out_tokens()) : "";
    }
    write_file_atomically(run.data(), file.dump(2) + "\n");
  }
  RunData data = open_data(run);
  fmt::print("data: {} tokens to train on, {} held out, a vocabulary of {}{}\n",
             format_count(data.training.size()), data.held_out ? format_count(data.held_out->size()) : "none",
             format_count(data.training.vocab_size()),
             reused ? " (there already: tokenizer and encoding skipped)" : "");
  std::fflush(stdout);
  return data;
}

void check_text(const RunFolder& run, const std::string& text) {
  const json made_from = read_data_file(run).at("made_from");
  check<ValueError>(made_from.value("text_fingerprint", "") == fingerprint(read_text(text)),
                    "[data] {} was made from another text than {}; give another folder, or remove this one",
                    run.path, text);
}

RunData open_data(const RunFolder& run) {
  const json file = read_data_file(run);
  // A name is the run's own file; a whole path stays what it is.
  const auto locate = [&](const char* key) {
    return (std::filesystem::path(run.path) / file.at(key).get<std::string>()).string();
  };
  std::optional<Tokenizer> tokenizer;
  if (std::filesystem::exists(run.tokenizer())) tokenizer = Tokenizer::load(run.tokenizer());
  const std::optional<int64_t> vocab_size = tokenizer ? std::optional(tokenizer->vocab_size()) : std::nullopt;
  std::optional<Dataset> held_out;
  if (file.at("held_out_tokens") != "") held_out = TokenFile::open(locate("held_out_tokens"), vocab_size);
  return {.name = file.at("name"),
          .training = TokenFile::open(locate("training_tokens"), vocab_size),
          .held_out = std::move(held_out),
          .tokenizer = std::move(tokenizer)};
}

int64_t target_bytes(const Dataset& data, const Tokenizer& tokenizer) {
  std::vector<int64_t> bytes;  // by token
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    bytes.push_back(std::ssize(tokenizer.decode({&id, 1})));
  bytes[static_cast<size_t>(tokenizer.end_of_text())] = 0;
  int64_t sum = 0;
  std::vector<int64_t> tokens(1 << 16);
  const auto add = [&](const TokenStream& stream, int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t count = std::min(std::ssize(tokens), end - begin);
      stream.copy(begin, count, tokens.data());
      for (int64_t i = 0; i < count; ++i)
        sum += bytes.at(static_cast<size_t>(tokens[static_cast<size_t>(i)]));
      begin += count;
    }
  };
  for (const TokenStream& stream : data.streams()) {
    const DocumentTable* documents = stream.documents();
    if (!documents) add(stream, 1, stream.size());
    for (int64_t i = 0; documents && i < documents->size(); ++i) {
      const DocumentPlace document = (*documents)[i];
      add(stream, std::max<int64_t>(document.first_target, 1), document.end);
    }
  }
  return sum;
}

}  // namespace tapehead
