#include "tapehead/models/token_list.h"

#include <limits>
#include <map>
#include <utility>

#include "tapehead/core/error.h"
#include "tapehead/models/byte_characters.h"

namespace tapehead {

TokenIds enumerate_tokens(std::span<const ListedToken> listed, const std::string& place) {
  const auto size = static_cast<int64_t>(listed.size());
  check<ValueError>(size <= std::numeric_limits<int32_t>::max(),
                    "[tokenizer] {} lists {} tokens, but ids have 32 bits", place, size);
  std::vector<const std::string*> owner(size);
  TokenIds ids;
  for (const auto& [token, value] : listed) {
    const int64_t id = value->is_number_integer() ? value->get<int64_t>() : -1;
    if (id < 0 || id >= size) {
      fail<ValueError>("[tokenizer] {}: \"{}\" has id {}, but the ids of {} tokens are 0 to {}", place, token,
                       value->dump(), size, size - 1);
    }
    const auto [entry, fresh] = ids.emplace(token, static_cast<int32_t>(id));
    if (!fresh) {
      fail<ValueError>("[tokenizer] {}: \"{}\" is listed twice", place, token);
    }
    if (owner[id] != nullptr) {
      fail<ValueError>("[tokenizer] {}: \"{}\" and \"{}\" have the same id {}", place, *owner[id], token, id);
    }
    owner[id] = &entry->first;
  }
  return ids;
}

std::vector<std::string> token_bytes(const TokenIds& ids, const std::vector<AddedToken>& added,
                                     const std::string& place) {
  std::vector<std::string> tokens(ids.size());
  for (const AddedToken& token : added) {
    tokens[token.id] = token.content;
  }
  for (const auto& [characters, id] : ids) {
    if (tokens[id].empty()) {
      std::optional<std::string> bytes = from_characters(characters);
      check<ValueError>(bytes.has_value() && !bytes->empty(),
                        "[tokenizer] {}: \"{}\" is empty or holds a character that stands for no byte", place,
                        characters);
      tokens[id] = *std::move(bytes);
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const std::string bytes(1, static_cast<char>(byte));
    const auto token = ids.find(to_characters(bytes));
    // An added token may take the character away by standing for itself.
    check<ValueError>(token != ids.end() && tokens[token->second] == bytes,
                      "[tokenizer] {} has no token for byte {} (\"{}\")", place, byte, to_characters(bytes));
  }
  return tokens;
}

std::optional<ListedMerge> split_merge(std::string_view merge) {
  const size_t space = merge.find(' ');
  if (space == 0 || space == std::string_view::npos || space + 1 == merge.size() ||
      merge.find(' ', space + 1) != std::string_view::npos) {
    return std::nullopt;
  }
  return ListedMerge{merge.substr(0, space), merge.substr(space + 1)};
}

void resolve_merges(std::span<const ListedMerge> listed, const TokenIds& ids,
                    const std::function<std::string(size_t)>& place, const std::string& tokens_place,
                    Vocabulary* vocabulary) {
  std::map<TokenPair, size_t> ranks;
  for (size_t rank = 0; rank < listed.size(); ++rank) {
    const auto id_of = [&](const std::string& token) {
      const auto entry = ids.find(token);
      if (entry == ids.end()) {
        fail<ValueError>("[tokenizer] {}: \"{}\" is no token of {}", place(rank), token, tokens_place);
      }
      return entry->second;
    };
    const std::string left(listed[rank].left);
    const std::string right(listed[rank].right);
    const TokenPair pair = {id_of(left), id_of(right)};
    const auto [earlier, fresh] = ranks.try_emplace(pair, rank);
    if (!fresh) {
      fail<ValueError>("[tokenizer] {}: \"{} {}\" is there already, as {}", place(rank), left, right,
                       place(earlier->second));
    }
    vocabulary->merges.push_back(pair);
    vocabulary->merged.push_back(id_of(left + right));
  }
}

}  // namespace tapehead
