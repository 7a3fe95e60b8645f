#include "tapehead/models/batches.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tapehead/core/random.h"

namespace tapehead {

int64_t count_windows(const TokenFile& tokens, int64_t context) {
  return std::max<int64_t>(tokens.size() - 1 + context - 1, 0) / context;
}

// The rows that the windows fill.
static Batch read_windows(const TokenFile& tokens, int64_t context, std::span<const int64_t> windows) {
  const auto rows = static_cast<int64_t>(windows.size());
  std::vector<int64_t> ids(static_cast<size_t>(rows * context), 0), targets(ids.size(), kIgnoredTarget);
  Batch batch;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t begin = windows[static_cast<size_t>(row)] * context;
    const int64_t count = std::min(context, tokens.size() - 1 - begin);
    tokens.copy(begin, count, ids.data() + row * context);
    tokens.copy(begin + 1, count, targets.data() + row * context);
    batch.target_tokens += count;
  }
  batch.ids = Tensor::from<int64_t>({rows, context}, ids);
  batch.targets = Tensor::from<int64_t>({rows, context}, targets);
  return batch;
}

Batch windows_in_order(const TokenFile& tokens, int64_t context, int64_t first, int64_t count) {
  std::vector<int64_t> windows(static_cast<size_t>(count));
  std::iota(windows.begin(), windows.end(), first);
  return read_windows(tokens, context, windows);
}

Batches::Batches(const TokenFile& tokens, int64_t rows, int64_t context, uint64_t seed, DataPosition position)
    : tokens_(&tokens), rows_(rows), context_(context), seed_(seed), position_(position) {
  check<ValueError>(tokens.size() > context,
                    "[batches] {} tokens are less than one context of {} and its next token: give more text "
                    "or a shorter context",
                    tokens.size(), context);
  const int64_t windows = count_windows(tokens, context);
  check<ValueError>(rows >= 1 && rows <= windows,
                    "[batches] a batch of {} rows from {} tokens, which fill {} rows of context {}: take a "
                    "batch of 1 to {}, a shorter context, or more text",
                    rows, tokens.size(), windows, context, windows);
  check<ValueError>(position.epoch >= 0 && position.window >= 0 && position.window <= windows,
                    "[batches] position {} of epoch {} is outside the data, which has {} windows",
                    position.window, position.epoch, windows);
  order_.resize(static_cast<size_t>(windows));
  shuffle();
}

// Fisher and Yates's shuffle, from an order and random numbers that depend on (seed, epoch) alone.
void Batches::shuffle() {
  Generator generator{.seed = seed_, .next = static_cast<uint64_t>(position_.epoch) << 32};
  std::iota(order_.begin(), order_.end(), int64_t{0});
  for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[generator.below(i)]);
}

Batch Batches::next() {
  std::vector<int64_t> windows;
  for (int64_t row = 0; row < rows_; ++row) {
    if (position_.window == this->windows()) {
      position_ = {.epoch = position_.epoch + 1, .window = 0};
      shuffle();
    }
    windows.push_back(order_[static_cast<size_t>(position_.window++)]);
  }
  return read_windows(*tokens_, context_, windows);
}

}  // namespace tapehead
