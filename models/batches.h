// Windows of tokens to train on, in an order of chance that a seed repeats.
#pragma once

#include <vector>

#include "tapehead/models/windows.h"

namespace tapehead {

/// Where a pass over the data stands; all that is needed to go on from there.
struct DataPosition {
  int64_t epoch = 0;
  int64_t window = 0;  ///< how many windows of this epoch were taken

  bool operator==(const DataPosition&) const = default;
};

/// An endless series of batches. Without weights, every epoch visits each window once. With weights,
/// an epoch has as many windows, and of stream k the share that is its weight's (at least one); a
/// stream's own windows come in rounds, each once a round, and the next epoch goes on where this one
/// ended. The order of an epoch depends on (seed, epoch) alone; a batch that begins near an epoch's
/// end ends in the next. Memory: 8 bytes for each window of an epoch. `data` must outlive it.
class Batches {
 public:
  /// Throws ValueError if there are fewer tokens than context + 1, or fewer windows than `rows`.
  Batches(const Dataset& data, int64_t rows, int64_t context, uint64_t seed, DataPosition position = {},
          bool within_documents = false);

  Batch next();

  const DataPosition& position() const { return position_; }
  /// Of an epoch.
  int64_t windows() const { return static_cast<int64_t>(order_.size()); }

 private:
  void order_epoch();
  void draw_by_weight();

  const Dataset* data_;
  Windows windows_;
  int64_t rows_;
  uint64_t seed_;
  DataPosition position_;
  std::vector<int64_t> order_;  // of this epoch
};

}  // namespace tapehead
