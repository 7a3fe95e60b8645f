#include "tapehead/models/batches.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tapehead/core/error.h"
#include "tapehead/models/shuffle.h"

namespace tapehead {

Batches::Batches(const Dataset& data, int64_t rows, int64_t context, uint64_t seed, DataPosition position,
                 bool within_documents)
    : data_(&data), windows_(data, context, within_documents), rows_(rows), seed_(seed), position_(position) {
  check<ValueError>(data.size() > context,
                    "[batches] {} tokens are less than one context of {} and its next token: give more text "
                    "or a shorter context",
                    data.size(), context);
  check<ValueError>(position.epoch >= 0, "[batches] the position's epoch is {}: it must be at least 0",
                    position.epoch);
  order_epoch();
  check<ValueError>(rows >= 1 && rows <= windows(),
                    "[batches] a batch of {} rows from {} tokens, which fill {} rows of context {}: take a "
                    "batch of 1 to {}, a shorter context, or more text",
                    rows, data.size(), windows(), context, windows());
  check<ValueError>(position.window >= 0 && position.window <= windows(),
                    "[batches] position {} of epoch {} is outside the data, which has {} windows",
                    position.window, position.epoch, windows());
}

void Batches::order_epoch() {
  if (data_->weights().empty()) {
    order_.resize(static_cast<size_t>(windows_.size()));
    std::iota(order_.begin(), order_.end(), int64_t{0});
  } else {
    draw_by_weight();
  }
  shuffle(order_, seed_, position_.epoch);
}

// Every stream has an endless series of its own: its windows, shuffled anew for each
// round. An epoch takes the next so many.
void Batches::draw_by_weight() {
  order_.clear();
  const std::span<const double> weights = data_->weights();
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> round_order;
  for (size_t k = 0; k < weights.size(); ++k) {
    const int64_t windows = windows_.first(k + 1) - windows_.first(k);
    if (windows == 0) continue;
    const int64_t share =
        std::max<int64_t>(std::llround(static_cast<double>(windows_.size()) * (weights[k] / sum)), 1);
    const uint64_t seed = seed_ + (k + 1) * 0x9E3779B97F4A7C15u;
    int64_t drawn = -1;  // the round in round_order
    for (int64_t i = position_.epoch * share; i < (position_.epoch + 1) * share; ++i) {
      if (const int64_t round = i / windows; round != drawn) {
        round_order.resize(static_cast<size_t>(windows));
        std::iota(round_order.begin(), round_order.end(), windows_.first(k));
        shuffle(round_order, seed, round);
        drawn = round;
      }
      order_.push_back(round_order[static_cast<size_t>(i % windows)]);
    }
  }
}

Batch Batches::next() {
  std::vector<int64_t> taken;
  for (int64_t row = 0; row < rows_; ++row) {
    if (position_.window == windows()) {
      position_ = {.epoch = position_.epoch + 1, .window = 0};
      order_epoch();
    }
    taken.push_back(order_[static_cast<size_t>(position_.window++)]);
  }
  return windows_.read(taken);
}

}  // namespace tapehead
