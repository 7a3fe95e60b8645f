#include "tapehead/models/piece_merger.h"

#include <algorithm>
#include <array>

namespace tapehead {
namespace {

// Pieces up to this many bytes are searched through for each merge, which beats a queue; nearly all are.
constexpr int64_t kFew = 32;

}  // namespace

void PieceMerger::merge(std::vector<int32_t>* ids, int64_t begin) {
  const std::span<int32_t> piece = std::span(*ids).subspan(begin);
  const int64_t kept = std::ssize(piece) <= kFew ? merge_few(piece) : merge_many(piece);
  ids->resize(begin + kept);
}

// Both return how many tokens are left, which stand in front.

int64_t PieceMerger::merge_few(std::span<int32_t> ids) {
  int64_t size = std::ssize(ids);
  std::array<PairRanks::Merge, kFew> merges;  // of the tokens i and i + 1
  for (int64_t i = 0; i + 1 < size; ++i) {
    merges[i] = ranks_(ids[i], ids[i + 1]);
  }
  while (size > 1) {
    const auto best = std::min_element(merges.begin(), merges.begin() + size - 1,
                                       [](const auto& a, const auto& b) { return a.rank < b.rank; });
    if (best->rank == PairRanks::kNone) {
      break;
    }
    const int64_t place = best - merges.begin();
    ids[place] = best->merged;
    --size;
    for (int64_t i = place + 1; i < size; ++i) {
      ids[i] = ids[i + 1];
      merges[i - 1] = merges[i];
    }
    if (place > 0) {
      merges[place - 1] = ranks_(ids[place - 1], ids[place]);
    }
    if (place + 1 < size) {
      merges[place] = ranks_(ids[place], ids[place + 1]);
    }
  }
  return size;
}

// A queue of what may merge keeps a piece of n bytes at n log n, because nothing bounds the length of a word.
int64_t PieceMerger::merge_many(std::span<int32_t> ids) {
  const int64_t size = std::ssize(ids);
  symbols_.resize(size);
  for (int64_t i = 0; i < size; ++i) {
    symbols_[i] = {ids[i], {}, i - 1, i + 1};
  }
  for (int64_t i = 0; i + 1 < size; ++i) {
    offer(i);
  }
  while (!queue_.empty()) {
    const auto [rank, place] = queue_.top();
    queue_.pop();
    if (symbols_[place].merge.rank == rank) {
      merge_at(place);
    }
  }
  int64_t kept = 0;
  for (int64_t i = 0; i < size; i = symbols_[i].next) {
    ids[kept++] = symbols_[i].id;
  }
  return kept;
}

void PieceMerger::offer(int64_t place) {
  Symbol& left = symbols_[place];
  const bool last = left.next == std::ssize(symbols_);
  left.merge = last ? PairRanks::Merge{} : ranks_(left.id, symbols_[left.next].id);
  if (left.merge.rank != PairRanks::kNone) {
    queue_.emplace(left.merge.rank, place);
  }
}

void PieceMerger::merge_at(int64_t place) {
  Symbol& left = symbols_[place];
  Symbol& right = symbols_[left.next];
  left.id = left.merge.merged;
  left.next = right.next;
  right.merge = {};
  if (left.next < std::ssize(symbols_)) {
    symbols_[left.next].previous = place;
  }
  offer(place);
  if (left.previous >= 0) {
    offer(left.previous);
  }
}

}  // namespace tapehead
