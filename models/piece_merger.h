// Byte-pair merges within one piece.
#pragma once

#include <cstdint>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "tapehead/models/pair_ranks.h"

namespace tapehead {

/// Merges tokens: the pair of lowest rank first, the leftmost among equals, until no pair has a rank. Keeps
/// its working memory from piece to piece; not thread-safe.
class PieceMerger {
 public:
  /// `ranks` must outlive it.
  explicit PieceMerger(const PairRanks& ranks) : ranks_(ranks) {}

  /// Merges `ids` from `begin` to the end, in place.
  void merge(std::vector<int32_t>* ids, int64_t begin);

 private:
  struct Symbol {
    int32_t id;
    PairRanks::Merge
        merge;  // of this symbol and the next; an entry of the queue with another rank is out of date
    int64_t previous, next;
  };
  using Entry = std::pair<int32_t, int64_t>;  // rank, place

  int64_t merge_few(std::span<int32_t> ids);
  int64_t merge_many(std::span<int32_t> ids);
  void offer(int64_t place);
  void merge_at(int64_t place);

  const PairRanks& ranks_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

}  // namespace tapehead
