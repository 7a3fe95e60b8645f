// Byte-pair training: which pairs of tokens are worth a token of their own.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

namespace tapehead {

using TokenPair = std::pair<int32_t, int32_t>;

/// Learns at most `limit` merges from `text`, in the order they are to be applied; merge i makes token
/// 256 + i. Each step merges the pair that occurs most often within pieces (pretokenizer.h, GPT-2's rule),
/// the smallest pair of ids among equals, so the result depends on the text alone (Sennrich et al. 2016,
/// "Neural Machine Translation of Rare Words with Subword Units"). Ends early when every piece is one token.
///   byte_ids   the token of each byte, a permutation of 0..255
///   progress   if given, is told after each merge how many are done, and `limit`
std::vector<TokenPair> learn_merges(std::string_view text, const std::array<int32_t, 256>& byte_ids,
                                    int64_t limit,
                                    const std::function<void(int64_t done, int64_t limit)>& progress);

}  // namespace tapehead
