#include "tapehead/models/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <unordered_map>

#include "tapehead/models/pretokenizer.h"

namespace tapehead {
namespace {

constexpr int32_t kDead = -1;
constexpr int64_t kEnd = -1;

// Every distinct piece stands once in one array of symbols. A merge writes the new token over its left symbol
// and takes the right one out of the list, so its cost is that of its occurrences, however long the pieces.
struct Symbol {
  int32_t id;
  int64_t previous, next;  // places in the same piece; kEnd beyond it
  int64_t count;           // how often the piece occurs in the text
};

struct Occurrences {
  int64_t count = 0;
  std::vector<int64_t> places;  // of the left symbol, ascending; some may have been merged away since
};

struct PairHash {
  size_t operator()(const TokenPair& pair) const {
    const auto key = static_cast<uint64_t>(pair.first) << 32 | static_cast<uint32_t>(pair.second);
    return (key * 0x9E3779B97F4A7C15u) >> 16;
  }
};

struct Candidate {
  int64_t count;
  TokenPair pair;

  // The most frequent on top of the queue, then the smallest pair.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Trainer {
 public:
  Trainer(std::string_view text, const std::array<int32_t, 256>& byte_ids) {
    std::unordered_map<std::string_view, int64_t> pieces;
    for_each_piece(text, SplittingRule::gpt2, [&](std::string_view piece) { ++pieces[piece]; });
    for (const auto& [piece, count] : pieces) {
      append(piece, count, byte_ids);
    }
    for (const auto& [pair, occurrences] : pairs_) {
      queue_.push({occurrences.count, pair});
    }
  }

  // Finds the best pair; false when no pair is left. A count in the queue may be higher than the true one,
  // never lower: a pair found too high goes back with the count it has.
  bool next_pair(TokenPair* best) {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const int64_t count = pairs_.at(top.pair).count;
      if (count == top.count) {
        *best = top.pair;
        return true;
      }
      offer(top.pair);
    }
    return false;
  }

  // Replaces the pair by `merged`, from left to right in each piece.
  //
  // No two merges make the same string: what happens between two token boundaries that stay is decided by the
  // bytes between them, so two occurrences of a string that both end as one token do so in the same step.
  // Hence `merged` is new, every pair that holds it is met first in this call, and places come out ascending.
  void merge(const TokenPair& pair, int32_t merged) {
    const std::vector<int64_t> places = std::move(pairs_.at(pair).places);
    std::vector<TokenPair> made;
    for (const int64_t place : places) {
      Symbol& left = symbols_[place];
      if (left.id != pair.first || left.next == kEnd || symbols_[left.next].id != pair.second) {
        continue;
      }
      Symbol& right = symbols_[left.next];
      if (left.previous != kEnd) {
        const int32_t before = symbols_[left.previous].id;
        pairs_.at({before, left.id}).count -= left.count;
        made.push_back(add({before, merged}, left.previous));
      }
      if (right.next != kEnd) {
        const int32_t after = symbols_[right.next].id;
        pairs_.at({right.id, after}).count -= left.count;
        made.push_back(add({merged, after}, place));
        symbols_[right.next].previous = place;
      }
      left.id = merged;
      left.next = right.next;
      right.id = kDead;
    }
    pairs_.erase(pair);
    std::sort(made.begin(), made.end());
    made.erase(std::unique(made.begin(), made.end()), made.end());
    for (const TokenPair& fresh : made) {
      offer(fresh);
    }
  }

 private:
  // A pair that no longer occurs never will again.
  void offer(const TokenPair& pair) {
    const auto entry = pairs_.find(pair);
    if (entry->second.count > 0) {
      queue_.push({entry->second.count, pair});
    } else {
      pairs_.erase(entry);
    }
  }

  void append(std::string_view piece, int64_t count, const std::array<int32_t, 256>& byte_ids) {
    const auto begin = static_cast<int64_t>(symbols_.size());
    const auto end = begin + static_cast<int64_t>(piece.size());
    for (int64_t place = begin; place < end; ++place) {
      const int32_t id = byte_ids[static_cast<unsigned char>(piece[place - begin])];
      symbols_.push_back({id, place == begin ? kEnd : place - 1, place + 1 == end ? kEnd : place + 1, count});
      if (place > begin) {
        add({symbols_[place - 1].id, id}, place - 1);
      }
    }
  }

  const TokenPair& add(const TokenPair& pair, int64_t place) {
    const auto entry = pairs_.try_emplace(pair).first;
    entry->second.count += symbols_[place].count;
    entry->second.places.push_back(place);
    return entry->first;
  }

  std::vector<Symbol> symbols_;
  std::unordered_map<TokenPair, Occurrences, PairHash> pairs_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

std::vector<TokenPair> learn_merges(std::string_view text, const std::array<int32_t, 256>& byte_ids,
                                    int64_t limit, const std::function<void(int64_t, int64_t)>& progress) {
  Trainer trainer(text, byte_ids);
  std::vector<TokenPair> merges;
  TokenPair pair;
  while (std::ssize(merges) < limit && trainer.next_pair(&pair)) {
    trainer.merge(pair, static_cast<int32_t>(256 + std::ssize(merges)));
    merges.push_back(pair);
    if (progress) {
      progress(std::ssize(merges), limit);
    }
  }
  return merges;
}

}  // namespace tapehead
