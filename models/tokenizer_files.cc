// A tokenizer's two files: the vocabulary, a JSON object from token to id, and the merges, a line each.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <unordered_map>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/models/byte_characters.h"
#include "tapehead/models/tokenizer.h"

namespace tapehead {
namespace {

using nlohmann::json;
using Ids = std::unordered_map<std::string, int32_t>;

constexpr std::string_view kVersionLine = "#version: 0.2";

struct Paths {
  std::string vocab;
  std::string merges;
};

Paths paths_in(const std::string& folder, const char* vocab, const char* merges) {
  return {(std::filesystem::path(folder) / vocab).string(),
          (std::filesystem::path(folder) / merges).string()};
}

Paths find_files(const std::string& folder) {
  const Paths named[] = {paths_in(folder, "vocab.json", "merges.txt"),
                         paths_in(folder, "encoder.json", "vocab.bpe")};
  for (const Paths& paths : named) {
    std::error_code unseen;
    if (std::filesystem::exists(paths.vocab, unseen) && std::filesystem::exists(paths.merges, unseen)) {
      return paths;
    }
  }
  fail<ValueError>(
      "[tokenizer] {} is no tokenizer: it needs vocab.json and merges.txt (or encoder.json and vocab.bpe)",
      folder);
}

json parse(const std::string& path) {
  try {
    return json::parse(read_file(path));
  } catch (const json::exception& error) {
    fail<ValueError>("[tokenizer] {} is not JSON: {}", path, error.what());
  }
}

// Ids by token, as characters.
Ids read_vocab(const std::string& path) {
  const json object = parse(path);
  check<ValueError>(object.is_object(), "[tokenizer] {} must be one JSON object from token to id, but is {}",
                    path, object.type_name());
  const auto size = static_cast<int64_t>(object.size());
  std::vector<const std::string*> owner(size);
  Ids ids;
  for (const auto& [token, value] : object.items()) {
    const int64_t id = value.is_number_integer() ? value.get<int64_t>() : -1;
    check<ValueError>(0 <= id && id < size,
                      "[tokenizer] {}: \"{}\" has id {}, but the ids of {} tokens are 0 to {}", path, token,
                      value.dump(), size, size - 1);
    const auto entry = ids.emplace(token, static_cast<int32_t>(id)).first;
    if (owner[id] != nullptr) {
      fail<ValueError>("[tokenizer] {}: \"{}\" and \"{}\" have the same id {}", path, *owner[id], token, id);
    }
    owner[id] = &entry->first;
  }
  return ids;
}

// The tokens' bytes, by id.
std::vector<std::string> to_bytes(const Ids& ids, const std::string& path) {
  std::vector<std::string> tokens(ids.size());
  for (const auto& [characters, id] : ids) {
    std::optional<std::string> bytes = from_characters(characters);
    check<ValueError>(bytes.has_value(), "[tokenizer] {}: \"{}\" holds a character that stands for no byte",
                      path, characters);
    tokens[id] = *std::move(bytes);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const std::string character = to_characters(std::string(1, static_cast<char>(byte)));
    check<ValueError>(ids.contains(character), "[tokenizer] {} has no token for byte {} (\"{}\")", path, byte,
                      character);
  }
  return tokens;
}

// Walks the lines of merges.txt. `line` counts from 1, as editors do.
template <class Take>
void for_each_merge(const std::string& text, Take&& take) {
  int64_t line = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view merge = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++line;
    if (merge.ends_with('\r')) {
      merge.remove_suffix(1);
    }
    // A merge may begin with '#' too.
    const bool version = line == 1 && merge.starts_with("#version");
    if (!version && !merge.empty()) {
      take(merge, line);
    }
  }
}

}  // namespace

Tokenizer Tokenizer::load(const std::string& folder) {
  const Paths paths = find_files(folder);
  const Ids ids = read_vocab(paths.vocab);
  std::vector<std::string> tokens = to_bytes(ids, paths.vocab);
  const auto end_of_text = ids.find(std::string(kEndOfText));
  check<ValueError>(end_of_text != ids.end(), "[tokenizer] {} has no {}", paths.vocab, kEndOfText);

  std::vector<TokenPair> merges;
  std::vector<int32_t> merged;
  std::unordered_map<std::string_view, int64_t> lines;
  const std::string text = read_file(paths.merges);
  for_each_merge(text, [&](std::string_view merge, int64_t line) {
    const size_t space = std::min(merge.find(' '), merge.size());
    const std::string left(merge.substr(0, space));
    const std::string right(merge.substr(std::min(space + 1, merge.size())));
    check<ValueError>(!left.empty() && !right.empty() && right.find(' ') == std::string::npos,
                      "[tokenizer] {}, line {}: \"{}\" is not two tokens with one space between",
                      paths.merges, line, merge);
    for (const std::string& token : {left, right, left + right}) {
      check<ValueError>(ids.contains(token), "[tokenizer] {}, line {}: \"{}\" is no token of {}",
                        paths.merges, line, token, paths.vocab);
    }
    const auto [earlier, fresh] = lines.try_emplace(merge, line);
    check<ValueError>(fresh, "[tokenizer] {}, line {}: \"{}\" is on line {} already", paths.merges, line,
                      merge, earlier->second);
    merges.emplace_back(ids.at(left), ids.at(right));
    merged.push_back(ids.at(left + right));
  });
  return Tokenizer(std::move(tokens), std::move(merges), std::move(merged), end_of_text->second);
}

void Tokenizer::save(const std::string& folder) const {
  std::error_code refused;
  std::filesystem::create_directories(folder, refused);
  check<SystemError>(!refused, "[tokenizer] cannot make the folder {}: {}", folder, refused.message());

  std::string vocab;
  for (int64_t id = 0; id < vocab_size(); ++id) {
    vocab += fmt::format("{}{}: {}", id == 0 ? "{" : ", ", json(to_characters(tokens_[id])).dump(), id);
  }
  vocab += "}\n";
  std::string merges = fmt::format("{}\n", kVersionLine);
  for (const auto& [left, right] : merges_) {
    merges += fmt::format("{} {}\n", to_characters(tokens_[left]), to_characters(tokens_[right]));
  }
  const Paths paths = paths_in(folder, "vocab.json", "merges.txt");
  write_file_atomically(paths.vocab, vocab);
  write_file_atomically(paths.merges, merges);
}

}  // namespace tapehead
