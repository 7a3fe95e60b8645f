// A tokenizer's folder: Hugging Face's files, and GPT-2's two, the vocabulary as a JSON object from token to
// id, and the merges, a line each.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/models/byte_characters.h"
#include "tapehead/models/token_list.h"
#include "tapehead/models/tokenizer.h"
#include "tapehead/models/tokenizer_json.h"

namespace tapehead {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kVersionLine = "#version: 0.2";
// What `transformers` calls a tokenizer that is its tokenizer.json.
constexpr std::string_view kFastTokenizer = "PreTrainedTokenizerFast";

struct Paths {
  std::string vocab;
  std::string merges;
};

std::string path_in(const std::string& folder, const char* name) {
  return (std::filesystem::path(folder) / name).string();
}

bool exists(const std::string& path) {
  std::error_code unseen;
  return std::filesystem::exists(path, unseen);
}

// ---- GPT-2's two files

Paths find_files(const std::string& folder) {
  const Paths named[] = {{path_in(folder, "vocab.json"), path_in(folder, "merges.txt")},
                         {path_in(folder, "encoder.json"), path_in(folder, "vocab.bpe")}};
  for (const Paths& paths : named) {
    if (exists(paths.vocab) && exists(paths.merges)) return paths;
  }
  fail<ValueError>(
      "[tokenizer] {} is no tokenizer: it needs tokenizer.json, or vocab.json and merges.txt (or "
      "encoder.json and "
      "vocab.bpe)",
      folder);
}

json parse(const std::string& path) {
  try {
    return json::parse(read_file(path));
  } catch (const json::exception& error) {
    fail<ValueError>("[tokenizer] {} is not JSON: {}", path, error.what());
  }
}

TokenIds read_vocab(const std::string& path) {
  const json object = parse(path);
  check<ValueError>(object.is_object(), "[tokenizer] {} must be one JSON object from token to id, but is {}",
                    path, object.type_name());
  std::vector<ListedToken> listed;
  for (const auto& [token, id] : object.items()) {
    listed.push_back({token, &id});
  }
  return enumerate_tokens(listed, path);
}

// The lines of merges.txt, each with its number as editors count, from 1.
std::vector<std::pair<std::string_view, int64_t>> merge_lines(std::string_view rest) {
  std::vector<std::pair<std::string_view, int64_t>> lines;
  for (int64_t line = 1; !rest.empty(); ++line) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view merge = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (merge.ends_with('\r')) {
      merge.remove_suffix(1);
    }
    // A merge may begin with '#' too.
    const bool version = line == 1 && merge.starts_with("#version");
    if (!version && !merge.empty()) {
      lines.emplace_back(merge, line);
    }
  }
  return lines;
}

Vocabulary read_vocab_and_merges(const Paths& paths) {
  const TokenIds ids = read_vocab(paths.vocab);
  Vocabulary vocabulary;
  vocabulary.tokens = token_bytes(ids, {}, paths.vocab);
  vocabulary.model_size = std::ssize(vocabulary.tokens);

  const std::string text = read_file(paths.merges);
  const auto lines = merge_lines(text);
  const auto place = [&](size_t rank) {
    return fmt::format("{}, line {}", paths.merges, lines[rank].second);
  };
  std::vector<ListedMerge> listed;
  for (const auto& [line, number] : lines) {
    const std::optional<ListedMerge> merge = split_merge(line);
    check<ValueError>(merge.has_value(),
                      "[tokenizer] {}, line {}: \"{}\" is not two tokens with one space between",
                      paths.merges, number, line);
    listed.push_back(*merge);
  }
  resolve_merges(listed, ids, place, paths.vocab, &vocabulary);
  return vocabulary;
}

// Whether these two files say all that there is to the tokenizer.
bool two_files_suffice(const Vocabulary& vocabulary) {
  return vocabulary.rule == SplittingRule::gpt2 && !vocabulary.nfc && !vocabulary.ignore_merges &&
         std::ranges::all_of(vocabulary.added, [&](const AddedToken& token) {
           return token.id == vocabulary.end_of_text && token.special &&
                  token.content == to_characters(token.content);
         });
}

// Of other models than GPT-2 they say too little.
void check_class(const Vocabulary& vocabulary, const Paths& paths) {
  if (vocabulary.tokenizer_config.empty()) return;
  const std::string name = json::parse(vocabulary.tokenizer_config).value("tokenizer_class", "GPT2Tokenizer");
  check<ValueError>(name.starts_with("GPT2Tokenizer") || name == kFastTokenizer,
                    "[tokenizer] {} and {} do not say how a {} cuts a text; it takes its tokenizer.json",
                    paths.vocab, paths.merges, name);
}

// ---- The end of text

// The token of that name; among those that were added first.
std::optional<int32_t> find_token(const Vocabulary& vocabulary, std::string_view name) {
  const auto added = std::ranges::find(vocabulary.added, name, &AddedToken::content);
  if (added != vocabulary.added.end()) return added->id;
  const auto token = std::ranges::find(vocabulary.tokens, name);
  if (token == vocabulary.tokens.end()) return std::nullopt;
  return static_cast<int32_t>(token - vocabulary.tokens.begin());
}

// A token as files write it.
std::string name_of(const Vocabulary& vocabulary, int32_t id) {
  const auto added = std::ranges::find(vocabulary.added, id, &AddedToken::id);
  return added != vocabulary.added.end() ? added->content : to_characters(vocabulary.tokens[id]);
}

// What tokenizer_config.json calls the end: a name, or an object with the name as its content.
std::optional<std::string> configured_name(const json& config) {
  const json token = config.is_object() ? config.value("eos_token", json()) : json();
  const json name = token.is_object() ? token.value("content", json()) : token;
  return name.is_string() ? std::optional(name.get<std::string>()) : std::nullopt;
}

// What a model's config.json calls it: an id, or several, of which the first is the documents' end.
std::optional<int64_t> configured_id(const std::string& path) {
  if (!exists(path)) return std::nullopt;
  const json config = parse(path);
  json id = config.is_object() ? config.value("eos_token_id", json()) : json();
  if (id.is_array() && !id.empty()) id = json(id[0]);
  return id.is_number_integer() ? std::optional(id.get<int64_t>()) : std::nullopt;
}

int32_t find_end_of_text(const std::string& folder, const Vocabulary& vocabulary) {
  if (!vocabulary.tokenizer_config.empty()) {
    if (const auto name = configured_name(json::parse(vocabulary.tokenizer_config))) {
      const std::optional<int32_t> id = find_token(vocabulary, *name);
      check<ValueError>(id.has_value(), "[tokenizer] {}: eos_token \"{}\" is no token of the vocabulary",
                        path_in(folder, "tokenizer_config.json"), *name);
      return *id;
    }
  }
  if (const auto id = configured_id(path_in(folder, "config.json"))) {
    const auto size = std::ssize(vocabulary.tokens);
    check<ValueError>(0 <= *id && *id < size,
                      "[tokenizer] {}: eos_token_id is {}, but the ids of {} tokens are 0 to {}",
                      path_in(folder, "config.json"), *id, size, size - 1);
    return static_cast<int32_t>(*id);
  }
  for (const std::string_view name : {Tokenizer::kEndOfText, std::string_view("<|end_of_text|>"),
                                      std::string_view("<|im_end|>"), std::string_view("</s>")}) {
    if (const auto id = find_token(vocabulary, name)) return *id;
  }
  fail<ValueError>(
      "[tokenizer] {} does not say which token ends a text: there is no {} and no other known name for it; "
      "name it as "
      "eos_token in tokenizer_config.json",
      folder, Tokenizer::kEndOfText);
}

// An object, or nothing if there is no such file.
std::string read_tokenizer_config(const std::string& folder) {
  const std::string path = path_in(folder, "tokenizer_config.json");
  if (!exists(path)) return "";
  const json config = parse(path);
  check<ValueError>(config.is_object(), "[tokenizer] {} must be one JSON object, but is {}", path,
                    config.type_name());
  return read_file(path);
}

// As it was read, but for the eos_token, which the next reader must find in it.
std::string tokenizer_config_to_save(const Vocabulary& vocabulary) {
  const std::string& text = vocabulary.tokenizer_config;
  if (!text.empty() && configured_name(json::parse(text))) return text;
  ordered_json config = {{"tokenizer_class", kFastTokenizer}, {"clean_up_tokenization_spaces", false}};
  if (!text.empty()) config = ordered_json::parse(text);
  config["eos_token"] = name_of(vocabulary, vocabulary.end_of_text);
  return config.dump(2) + "\n";
}

}  // namespace

Tokenizer Tokenizer::load(const std::string& folder) {
  const std::string tokenizer_json = path_in(folder, "tokenizer.json");
  const bool whole = exists(tokenizer_json);
  const Paths paths = whole ? Paths{} : find_files(folder);
  Vocabulary vocabulary =
      whole ? parse_tokenizer_json(read_file(tokenizer_json), tokenizer_json) : read_vocab_and_merges(paths);
  vocabulary.tokenizer_config = read_tokenizer_config(folder);
  if (!whole) check_class(vocabulary, paths);
  vocabulary.end_of_text = find_end_of_text(folder, vocabulary);
  if (!whole) {
    vocabulary.added = {{vocabulary.end_of_text, vocabulary.tokens[vocabulary.end_of_text], true}};
  }
  return Tokenizer(std::move(vocabulary));
}

void Tokenizer::save(const std::string& folder) const {
  make_folder(folder);
  write_file_atomically(path_in(folder, "tokenizer.json"), to_tokenizer_json(vocabulary_));
  write_file_atomically(path_in(folder, "tokenizer_config.json"), tokenizer_config_to_save(vocabulary_));
  if (!two_files_suffice(vocabulary_)) return;
  std::string vocab;
  for (int64_t id = 0; id < vocab_size(); ++id) {
    vocab +=
        fmt::format("{}{}: {}", id == 0 ? "{" : ", ", json(to_characters(vocabulary_.tokens[id])).dump(), id);
  }
  vocab += "}\n";
  std::string merges = fmt::format("{}\n", kVersionLine);
  for (const auto& [left, right] : vocabulary_.merges) {
    merges += fmt::format("{} {}\n", to_characters(vocabulary_.tokens[left]),
                          to_characters(vocabulary_.tokens[right]));
  }
  write_file_atomically(path_in(folder, "vocab.json"), vocab);
  write_file_atomically(path_in(folder, "merges.txt"), merges);
}

}  // namespace tapehead
