// Rows of tokens to train on, shuffled by seed, and rows to measure on, in order.
//
// A file of n tokens is cut into windows of T inputs: window w reads tokens wT .. wT + T - 1 and predicts
// wT + 1 .. wT + T. So every token but the first is a target exactly once in an epoch. The last window may be
// shorter: its missing targets are kIgnoredTarget.
#pragma once

#include <vector>

#include "tapehead/core/tensor.h"
#include "tapehead/models/token_file.h"

namespace tapehead {

/// The target that counts for nothing: linear_cross_entropy's default ignore_index.
constexpr int64_t kIgnoredTarget = -100;

struct Batch {
  Tensor ids;                 ///< (B, T) i64
  Tensor targets;             ///< (B, T) i64: the tokens that follow, or kIgnoredTarget
  int64_t target_tokens = 0;  ///< how many targets count
};

/// Where a pass over the data stands; all that is needed to go on from there.
struct DataPosition {
  int64_t epoch = 0;
  int64_t window = 0;  ///< how many windows of this epoch were taken

  bool operator==(const DataPosition&) const = default;
};

/// How many windows of `context` inputs the file has.
int64_t count_windows(const TokenFile& tokens, int64_t context);

/// Windows first .. first + count - 1 in the file's order.
Batch windows_in_order(const TokenFile& tokens, int64_t context, int64_t first, int64_t count);

/// An endless series of batches. Every epoch visits each window once, in an order that depends on
/// (seed, epoch) alone; a batch that begins near an epoch's end ends in the next. `tokens` must outlive it.
class Batches {
 public:
  /// Throws ValueError if the file has fewer tokens than context + 1, or fewer windows than `rows`.
  Batches(const TokenFile& tokens, int64_t rows, int64_t context, uint64_t seed, DataPosition position = {});

  Batch next();

  const DataPosition& position() const { return position_; }
  int64_t windows() const { return static_cast<int64_t>(order_.size()); }

 private:
  void shuffle();

  const TokenFile* tokens_;
  int64_t rows_, context_;
  uint64_t seed_;
  DataPosition position_;
  std::vector<int64_t> order_;  // of this epoch
};

}  // namespace tapehead
