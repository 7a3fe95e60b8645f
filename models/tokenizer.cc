#include "tapehead/models/tokenizer.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <unordered_map>
#include <utility>

#include "tapehead/core/error.h"
#include "tapehead/models/byte_characters.h"
#include "tapehead/models/pretokenizer.h"

namespace tapehead {
namespace {

// Merges the tokens of a piece: the pair of lowest rank first, the leftmost among equals. A queue of what may
// merge keeps a piece of n bytes at n log n, because nothing bounds the length of a word.
class PieceMerger {
 public:
  PieceMerger(const PairRanks& ranks, std::span<const int32_t> merged) : ranks_(ranks), merged_(merged) {}

  // Merges `ids` from `begin` to the end, in place.
  void merge(std::vector<int32_t>* ids, int64_t begin) {
    const int64_t size = std::ssize(*ids) - begin;
    symbols_.resize(size);
    for (int64_t i = 0; i < size; ++i) {
      symbols_[i] = {(*ids)[begin + i], PairRanks::kNone, i - 1, i + 1};
    }
    for (int64_t i = 0; i + 1 < size; ++i) {
      offer(i);
    }
    while (!queue_.empty()) {
      const auto [rank, place] = queue_.top();
      queue_.pop();
      if (symbols_[place].rank == rank) {
        merge_at(place);
      }
    }
    int64_t kept = begin;
    for (int64_t i = 0; i < size; i = symbols_[i].next) {
      (*ids)[kept++] = symbols_[i].id;
    }
    ids->resize(kept);
  }

 private:
  struct Symbol {
    int32_t id;
    int32_t rank;  // of this symbol and the next; an entry of the queue with another rank is out of date
    int64_t previous, next;
  };
  using Entry = std::pair<int32_t, int64_t>;  // rank, place

  void offer(int64_t place) {
    Symbol& left = symbols_[place];
    const bool last = left.next == std::ssize(symbols_);
    left.rank = last ? PairRanks::kNone : ranks_(left.id, symbols_[left.next].id);
    if (left.rank != PairRanks::kNone) {
      queue_.emplace(left.rank, place);
    }
  }

  void merge_at(int64_t place) {
    Symbol& left = symbols_[place];
    Symbol& right = symbols_[left.next];
    left.id = merged_[left.rank];
    left.next = right.next;
    right.rank = PairRanks::kNone;
    if (left.next < std::ssize(symbols_)) {
      symbols_[left.next].previous = place;
    }
    offer(place);
    if (left.previous >= 0) {
      offer(left.previous);
    }
  }

  const PairRanks& ranks_;
  std::span<const int32_t> merged_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

}  // namespace

Tokenizer::Tokenizer(std::vector<std::string> tokens, std::vector<TokenPair> merges,
                     std::vector<int32_t> merged, int32_t end_of_text)
    : tokens_(std::move(tokens)),
      merges_(std::move(merges)),
      merged_(std::move(merged)),
      end_of_text_(end_of_text),
      ranks_(merges_) {
  for (int64_t id = 0; id < vocab_size(); ++id) {
    if (tokens_[id].size() == 1) {
      byte_ids_[static_cast<unsigned char>(tokens_[id][0])] = static_cast<int32_t>(id);
    }
  }
}

Tokenizer Tokenizer::train(std::string_view text, int64_t vocab_size,
                           const std::function<void(int64_t, int64_t)>& progress) {
  check<ValueError>(
      vocab_size >= kMinVocabSize,
      "[tokenizer] vocab_size is {}, but the 256 bytes and {} need {}; ask for at least that many",
      vocab_size, kEndOfText, kMinVocabSize);
  check<ValueError>(vocab_size <= std::numeric_limits<int32_t>::max(),
                    "[tokenizer] vocab_size is {}, but ids have 32 bits; ask for at most {}", vocab_size,
                    std::numeric_limits<int32_t>::max());
  std::vector<TokenPair> merges = learn_merges(text, kByteIds, vocab_size - kMinVocabSize, progress);

  std::vector<std::string> tokens(256);
  for (int byte = 0; byte < 256; ++byte) {
    tokens[kByteIds[byte]] = static_cast<char>(byte);
  }
  std::vector<int32_t> merged;
  for (const auto& [left, right] : merges) {
    merged.push_back(static_cast<int32_t>(tokens.size()));
    tokens.push_back(tokens[left] + tokens[right]);
  }
  const auto end_of_text = static_cast<int32_t>(tokens.size());
  tokens.emplace_back(kEndOfText);
  return Tokenizer(std::move(tokens), std::move(merges), std::move(merged), end_of_text);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  // Most pieces of a text have occurred before: they are copied from where their tokens already stand. The
  // memory of where that is stays bounded by forgetting it all.
  struct Place {
    size_t begin, count;
  };
  constexpr size_t kRemembered = 1 << 16;
  std::unordered_map<std::string_view, Place> seen;
  std::vector<int32_t> ids;
  PieceMerger merger(ranks_, merged_);
  for_each_piece(text, [&](std::string_view piece) {
    if (seen.size() == kRemembered) {
      seen.clear();
    }
    const size_t begin = ids.size();
    const auto [entry, fresh] = seen.try_emplace(piece, Place{begin, 0});
    auto& [earlier, count] = entry->second;
    if (fresh) {
      for (const char byte : piece) {
        ids.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
      }
      merger.merge(&ids, static_cast<int64_t>(begin));
      count = ids.size() - begin;
    } else {
      ids.resize(begin + count);
      std::copy_n(ids.begin() + static_cast<int64_t>(earlier), count,
                  ids.begin() + static_cast<int64_t>(begin));
    }
  });
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    check<ValueError>(0 <= id && id < vocab_size(), "[tokenizer] token id {} is outside the vocabulary of {}",
                      id, vocab_size());
    text += tokens_[id];
  }
  return text;
}

}  // namespace tapehead
