// Cross entropy over logits that exist: torch.nn.functional.cross_entropy, and the rules that
// linear_cross_entropy shares.
#pragma once

#include <optional>

#include "tapehead/core/tape.h"

namespace tapehead {

enum class Reduction : uint8_t { mean, sum, none };

/// "mean", "sum", "none".
std::string_view name(Reduction reduction);
/// The inverse of name(). Throws ValueError.
Reduction parse_reduction(std::string_view text);

/// What a row's loss is, and how rows become one number. Shared by cross_entropy and linear_cross_entropy.
///
/// Targets are class indices (i64 or i32; one a row), or class probabilities (the logits' shape and dtype).
/// mean divides by the sum of class_weight[target] over the rows that are not ignored, or, for probabilities,
/// by the number of rows. With nothing to average, mean is NaN and so are its gradients; sum is 0.
struct CrossEntropyArgs {
  Tensor class_weight;  ///< (C), same dtype; optional; gets no gradient
  Reduction reduction = Reduction::mean;
  std::optional<int64_t>
      ignore_index;            ///< rows with this target count for nothing; absent: -100; any value is legal
  double label_smoothing = 0;  ///< in [0, 1], as torch.nn.functional.cross_entropy has it
  std::optional<double>
      normalizer;  ///< > 0: mean divides by this instead (gradients accumulated over micro-batches)
};

/// Cross entropy of logits (C), (N, C) or (N, C, d1, ..., dK) with the target's shape (), (N) or (N, d1, ...,
/// dK), or that of the logits for probabilities. Loss: the logits' dtype, shape () or, for none, the index
/// target's shape. Probabilities that require a gradient get one.
///
/// Throws ValueError on shapes, on an index outside [0, C) that is not ignore_index (naming the first such
/// row and value), on label_smoothing outside [0, 1] and normalizer <= 0; TypeError on dtypes; RuntimeError
/// on an explicit ignore_index with probabilities.
Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyArgs& args = {});

}  // namespace tapehead
