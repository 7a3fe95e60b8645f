// The rows of a cross entropy: which of them count and how much, and how their losses become one number. The
// logits come from elsewhere: from a tensor (ops/cross_entropy), or chunk by chunk
// (ops/linear_cross_entropy).
#pragma once

#include "tapehead/backends/backend.h"
#include "tapehead/backends/tuning.h"
#include "tapehead/ops/cross_entropy.h"

namespace tapehead {

/// Rows [begin, end) of x, as a view that is not recorded; undefined of undefined.
Tensor row_range(const Tensor& x, int64_t begin, int64_t end);

/// What the row pass reads for each row, on the device.
struct RowInputs {
  Tensor upstream;       ///< the gradient of the result, (N) or (), in f64; undefined: 1
  Tensor upstream_rows;  ///< likewise of the rows that the pass goes through
  Tensor row_scale;      ///< (n) f64: multiplies the row's loss
  Tensor z_row_scale;    ///< (n) f64: multiplies the row's z-loss; undefined without one

  /// The power of two below the largest |row_scale|; 1 if they are all 0 or not finite. Gradients of f16 are
  /// written in units of it, or 1 / N would push them below what f16 holds. Waits for the device.
  double largest_unit() const;
};

/// Whether the host learns at no cost how many rows count, and passes end with the last of them. Elsewhere
/// they end with CrossEntropyArgs::counted_rows or all N; rows of zeros stand in the place of those that do
/// not count, with a scale of 0.
inline bool counts_rows(Device device) { return is_synchronous(device); }

/// What the row pass can tell of each row, on the device; undefined ones are not asked for.
struct RowOutputs {
  Tensor loss;                                   ///< (n) f64, scaled, z-loss included
  Tensor lse, target_logprob, entropy, correct;  ///< (n) f64, correct i64: for CrossEntropyStats
};

/// Allocates them for n rows: the loss, and with `stats` what statistics need.
RowOutputs row_outputs(int64_t n, bool probabilities, bool stats, Device device);

/// Everything about a call that does not depend on the logits' values. N rows of C classes, of which n go
/// through the passes. All of it stays on the device.
class RowLoss {
 public:
  /// Checks `target` and `args` against (N, C); `dtype` is the logits'. The target has N elements for
  /// indices, or is (N, C) for `probabilities`; token_weight has N elements. With `live_only`, rows that do
  /// not count are left out (counts_rows()); else they stay, with a scale of 0. Throws what cross_entropy
  /// documents, beginning with [op].
  RowLoss(const char* op, int64_t N, int64_t C, DType dtype, const Tensor& target, bool probabilities,
          const CrossEntropyArgs& args, bool live_only);

  /// How many rows the pass goes through.
  int64_t rows() const { return weight_.size(0); }
  /// How many rows count. Waits for the device.
  int64_t count() const;
  /// (N, C): the target, if it is class probabilities; else undefined.
  const Tensor& probabilities() const { return probability_; }
  /// (C), dense; undefined without class weights.
  const Tensor& class_weight() const { return class_weight_; }
  double label_smoothing() const { return label_smoothing_; }
  double logit_scale() const { return logit_scale_; }
  /// (n) i64: which of the N rows they are, -1 for none; undefined if they are all.
  const Tensor& ids() const { return ids_; }

  /// Of a call with no rows: whether the result is NaN, as there is nothing to average, and not 0.
  /// (Where there are rows, but none counts, their scales are NaN.)
  bool averages_nothing() const { return divisor_.mean && rows() == 0 && !divisor_.zero_if_empty; }

  /// Allocates and fills what the pass reads; `upstream` is the gradient of the result, a scalar or for none
  /// (N), and multiplies the scales; undefined: 1.
  RowInputs inputs(const Tensor& upstream = {}) const;

  /// The arguments of the row pass for rows [begin, end), but for logits, gradient and, where rows were left
  /// out, probabilities. Views, no copies.
  CrossEntropyRows pass(int64_t begin, int64_t end, const RowInputs& inputs, const RowOutputs& outputs) const;

  /// The result from every row's scaled loss: the sum as a scalar, or for none (N), 0 in rows that do not
  /// count.
  Tensor reduce(const Tensor& row_losses, DType dtype) const;

  /// Statistics from what the row pass told of each row; `shape` is that of an index target.
  /// Waits for the device.
  CrossEntropyStats statistics(const RowOutputs& outputs, const Shape& shape, DType dtype) const;

 private:
  Tensor scattered(const Tensor& of_rows, double elsewhere, DType dtype) const;

  int64_t N_, C_;
  Reduction reduction_;
  RowDivisor divisor_;
  double label_smoothing_, logit_scale_, softcap_, z_loss_;
  Device device_;
  Tensor probability_;   // (N, C)
  Tensor class_weight_;  // (C)
  Tensor ids_;           // (n) i64; undefined: all N
  Tensor index_;         // (n) i64: classes, 0 in rows that do not count
  Tensor weight_;        // (n) f64: token weights, 0 in rows that do not count
  Tensor divisors_;      // (3) f64: CrossEntropyTargets'
};

}  // namespace tapehead
