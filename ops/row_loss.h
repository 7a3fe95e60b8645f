// The rows of a cross entropy: which of them count and how much, and how their losses become one number. The
// logits come from elsewhere: from a tensor (ops/cross_entropy), or chunk by chunk
// (ops/linear_cross_entropy).
#pragma once

#include "tapehead/backends/backend.h"
#include "tapehead/ops/cross_entropy.h"

namespace tapehead {

/// Everything about a call that does not depend on the logits' values. N rows of C classes.
class RowLoss {
 public:
  /// Checks `target` and `args` against (N, C); `dtype` is the logits'. The target is (N) for indices, (N, C)
  /// for `probabilities`. Throws what cross_entropy documents, beginning with [op].
  RowLoss(const char* op, int64_t N, int64_t C, DType dtype, const Tensor& target, bool probabilities,
          const CrossEntropyArgs& args);

  int64_t rows() const { return N_; }
  bool probabilities() const { return probability_.defined(); }

  /// Only the rows that count, and which those are: `ids` becomes (n) i64, or undefined where all N do.
  RowLoss live_rows(Tensor& ids) const;

  /// Whether mean has nothing to divide by: then it is NaN, and so are its gradients.
  bool averages_nothing() const { return reduction_ == Reduction::mean && live_ == 0; }

  /// (N) f64: what each row's loss is multiplied by on its way into the result, times the upstream gradient
  /// of that result, a scalar or for none (N); undefined: 1. A row that does not count has 0.
  Tensor row_scale(const Tensor& upstream = {}) const;

  /// The arguments of the row pass for rows [begin, end), but for logits and outputs. Views, no copies.
  CrossEntropyRows row_pass(int64_t begin, int64_t end, const Tensor& row_scale) const;

  /// The result from every row's loss, already multiplied by row_scale(): the sum as a scalar, or for none
  /// (N).
  Tensor reduce(const Tensor& row_losses, DType dtype) const;

 private:
  RowLoss() = default;

  int64_t N_ = 0, C_ = 0;
  int64_t live_ = 0;    // rows that count
  double divisor_ = 1;  // of mean
  Reduction reduction_ = Reduction::mean;
  double label_smoothing_ = 0;
  Tensor index_;         // (N) i64; 0 in rows that do not count
  Tensor probability_;   // (N, C)
  Tensor class_weight_;  // (C)
  Tensor row_weight_;    // (N) f64: 0 in rows that do not count
};

}  // namespace tapehead
