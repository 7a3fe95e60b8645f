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

/// What one pass over the logits can tell beside the loss; detached. Rows that do not count are
/// NaN, and 0 in `correct`.
struct CrossEntropyStats {
  Tensor lse;             ///< of each row; shape of an index target; f32, or f64 for f64
  Tensor target_logprob;  ///< of the target index; undefined for probabilities
  Tensor entropy;         ///< of the predicted distribution, in nats
  Tensor correct;         ///< i64: 1 where the first largest logit is the target; undefined for probabilities
  int64_t rows = 0;       ///< that count
  int64_t correct_rows = 0;
  double loss_sum = 0;  ///< Σ of their losses, class and token weights included, without the z-loss
  double z_loss = 0;    ///< Σ of their z-losses, coefficient and token weights included
};

/// The ignore_index of calls that name none, as in torch.nn.functional.cross_entropy.
constexpr int64_t kDefaultIgnoreIndex = -100;

/// What a row's loss is, and how rows become one number. Shared by cross_entropy and linear_cross_entropy.
///
/// With z the row's logits and t its target, a row's loss is
///
///   token_weight · (cross entropy of softmax(z) and t + z_loss · lse(z)²)
///
/// with class weights and label smoothing as in torch.nn.functional.cross_entropy. Targets are class indices
/// (i64 or i32; one a row), or class probabilities (the logits' shape and dtype). A row counts unless its
/// index is ignore_index or its token weight is 0.
///
/// mean divides by Σ token_weight · class_weight[target] over the rows that count, or for probabilities by
/// Σ token_weight; the z-loss by Σ token_weight. With nothing to average, mean is NaN and so are its
/// gradients; sum is 0.
struct CrossEntropyArgs {
  Tensor class_weight;  ///< (C), same dtype; optional; gets no gradient
  Tensor token_weight;  ///< of an index target's shape, floating; optional; gets no gradient
  Reduction reduction = Reduction::mean;
  std::optional<int64_t> ignore_index;  ///< absent: kDefaultIgnoreIndex; any value is legal
  double label_smoothing = 0;           ///< in [0, 1]
  std::optional<double> softcap;        ///< > 0: z = cap · tanh(z / cap) (Gemma 2)
  double logit_scale = 1;               ///< finite: multiplies the logits, before the softcap
  double z_loss = 0;                    ///< >= 0 (de Brébisson and Vincent, 2016; PaLM)
  std::optional<double> normalizer;     ///< > 0: mean divides by this instead (gradients over micro-batches)
  std::optional<DType> loss_dtype;      ///< absent: the input's
  /// How many rows count, if the caller knows. Where the host would have to wait to learn it, all rows are
  /// computed without it.
  std::optional<int64_t> counted_rows;
  bool zero_if_empty = false;          ///< mean over nothing is 0, with gradients of 0
  CrossEntropyStats* stats = nullptr;  ///< filled by the forward pass, if given
};

/// Cross entropy of logits (C), (N, C) or (N, C, d1, ..., dK) with a target of shape (), (N) or
/// (N, d1, ..., dK), or of the logits' shape for probabilities. Loss: the logits' dtype, shape () or, for
/// none, the index target's shape. Probabilities that require a gradient get one.
///
/// Throws ValueError on shapes and devices that do not fit, on an index outside [0, C) that is not
/// ignore_index (naming the first such row and value), on a number outside the range above, on more rows that
/// count than counted_rows, perhaps only when the device is next waited for; TypeError on dtypes;
/// RuntimeError on an explicit ignore_index with probabilities, and from backward if logits, target or
/// class_weight were changed in place.
Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyArgs& args = {});

/// The same of logits whose classes stand along `class_axis`, as `op`: errors and the node bear its name,
/// which is a string literal.
Tensor cross_entropy_along(const char* op, int64_t class_axis, const Tensor& logits, const Tensor& target,
                           const CrossEntropyArgs& args);

}  // namespace tapehead
