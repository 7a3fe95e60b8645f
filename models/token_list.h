// A vocabulary as files list it: tokens and merges written in characters (byte_characters.h), checked on
// their way to ids and bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tapehead/models/vocabulary.h"

namespace tapehead {

/// Ids by token, as characters.
using TokenIds = std::unordered_map<std::string, int32_t>;

struct ListedToken {
  std::string_view token;
  const nlohmann::json* id;
};

struct ListedMerge {
  std::string_view left, right;
};

/// The ids of tokens that differ. ValueError, naming `place`, unless they are 0 .. n - 1, each once.
TokenIds enumerate_tokens(std::span<const ListedToken> listed, const std::string& place);

/// The bytes of tokens, by id; those of `added` are their UTF-8. ValueError, naming `place`, for a token with
/// a character that stands for no byte, and if a byte is no token.
std::vector<std::string> token_bytes(const TokenIds& ids, const std::vector<AddedToken>& added,
                                     const std::string& place);

/// "left right" with one space between; nothing if it is not that.
std::optional<ListedMerge> split_merge(std::string_view merge);

/// Puts merges, in order of their rank, into the vocabulary. ValueError for one whose tokens or concatenation
/// are none, and for one that was there already.
///   place         of a merge by its rank, for errors
///   tokens_place  where the tokens are listed
void resolve_merges(std::span<const ListedMerge> listed, const TokenIds& ids,
                    const std::function<std::string(size_t rank)>& place, const std::string& tokens_place,
                    Vocabulary* vocabulary);

}  // namespace tapehead
