// Looks up what a pair of tokens becomes: the inner step of byte-pair encoding.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tapehead/models/bpe_trainer.h"

namespace tapehead {

/// A hash table with open addressing, at most half full: most lookups touch one cache line. Fixed once built,
/// so any number of threads may read it.
class PairRanks {
 public:
  static constexpr int32_t kNone = std::numeric_limits<int32_t>::max();

  struct Merge {
    int32_t rank = kNone;  ///< larger than any other if the pair is not there
    int32_t merged = 0;    ///< the token that the pair becomes
  };

  /// The rank of a pair is its place in `pairs`, which holds no pair twice; `merged` has what each becomes.
  PairRanks(std::span<const TokenPair> pairs, std::span<const int32_t> merged)
      : slots_(std::bit_ceil(2 * pairs.size() + 1)), shift_(64 - std::countr_zero(slots_.size())) {
    for (size_t rank = 0; rank < pairs.size(); ++rank) {
      slots_[slot_of(pairs[rank])] = {pairs[rank], {static_cast<int32_t>(rank), merged[rank]}};
    }
  }

  Merge operator()(int32_t left, int32_t right) const { return slots_[slot_of({left, right})].merge; }

 private:
  struct Slot {
    TokenPair pair;
    Merge merge;
  };

  // Where the pair is, or where it would go. Multiplicative hashing, by the golden ratio (Knuth,
  // TAOCP 3, 6.4): the high bits are the mixed ones.
  size_t slot_of(const TokenPair& pair) const {
    const auto key = static_cast<uint64_t>(pair.first) << 32 | static_cast<uint32_t>(pair.second);
    size_t slot = key * 0x9E3779B97F4A7C15u >> shift_;
    while (slots_[slot].merge.rank != kNone && slots_[slot].pair != pair) {
      slot = (slot + 1) & (slots_.size() - 1);
    }
    return slot;
  }

  std::vector<Slot> slots_;
  int shift_;
};

}  // namespace tapehead
