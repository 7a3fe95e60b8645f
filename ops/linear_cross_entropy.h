// The vocabulary head and its loss in one op that never holds the whole logits:
// torch.nn.functional.linear_cross_entropy.
//
// Shape letters: N rows (tokens), F in_features, C classes (vocabulary), B rows in one chunk.
#pragma once

#include "tapehead/core/random.h"
#include "tapehead/ops/cross_entropy.h"
#include "tapehead/ops/linear_cross_entropy_options.h"

namespace tapehead {

/// What gradient_filter did in one pass.
struct GradientFilterStats {
  int64_t rows = 0;  ///< that got a gradient
  /// Σ over them of the p below the level: dropped by threshold, sampled by stochastic.
  double filtered_mass = 0;
  int64_t sparse_chunks = 0;  ///< whose products went over the entries that were left
  int64_t dense_chunks = 0;   ///< where too many were left for that
  int64_t sparse_rows = 0;    ///< rows of the sparse chunks
  int64_t entries = 0;        ///< left in them, those of the targets included

  GradientFilterStats& operator+=(const GradientFilterStats& other);
};

struct LinearCrossEntropyArgs : CrossEntropyArgs {
  Tensor bias;  ///< (C), or (C, d1, ..., dK) with such a weight; optional
  std::optional<LinearCrossEntropyOptions> options;  ///< absent: the reference path, which holds the logits
  /// Where a stochastic gradient_filter takes its numbers from, N · filter_blocks(C) blocks a call.
  Generator* filter_numbers = nullptr;
  /// Filled by the pass that computes the gradients: forward, or for none and recompute backward.
  std::shared_ptr<GradientFilterStats> filter_stats;
};

/// loss = cross_entropy(input · weightᵀ + bias, target).
///
///   input   (F) or (..., F)           floating
///   weight  (C, F), or (C, d1, ..., dK, F) with an input (N, F), on the reference path
///   target  indices of the input's leading shape (with K dimensions: (N, d1, ..., dK)), i64 or i32;
///           or probabilities of the logits' shape and the input's dtype. Told apart by shape and dtype.
///
/// The loss has the input's dtype, or loss_dtype, and shape (), or for none that of an index target.
///
/// With options, chunks of rows go through the head one after another: B×C logits, their loss, their
/// gradients, and the memory is used again. Rows that are ignored are left out before the first product.
///  - mean, sum: forward computes the gradients, too. Backward multiplies those buffers in place by the
///    upstream gradient and hands them on without a copy, so it works once; allow_retain_graph keeps them and
///    hands out copies.
///  - none, and recompute: forward keeps the inputs, and backward computes each chunk again with its rows'
///    upstream gradients.
/// With inputs of f16 or bf16 and acc_dtype f32:
///
///                                              accurate       balanced       compact
///   logits (B, C), softmax, losses             f32            f32            f32
///   their gradient, as the products read it    f32            input's        input's
///   input gradient, while it is built          f32            input's        input's
///   weight gradient across chunks              f32, rounded   f32, rounded   input's
///   bias gradient across chunks                f32            f32            f32
///
/// Accurate and balanced keep each gradient within 3 epsilons of the input's dtype, in norm, whatever the
/// number of chunks. Compact rounds the weight gradient once a chunk, so its error grows with their
/// number: docs/exactness.md.
///
/// gradient_filter: the two gradient products multiply by p - onehot, and nearly all of p is dust. What
/// the filter leaves goes through sparse products instead, chunk by chunk, unless so much is left that
/// dense ones are faster.
///  - stochastic:TAU keeps every p >= TAU and the target's entry exactly; another p becomes TAU with
///    probability p / TAU, else 0. So the gradient's expectation is exact, from the first step on; the
///    variance added to a row (the sum over its entries) is at most TAU times the mass below TAU; and about
///    1 / TAU entries are left at most, whatever C is. Numbers depend on row and class alone: chunks and
///    threads do not change the choice.
///  - threshold:EPS drops every p < EPS but the target's: biased by what is dropped (per entry what Cut
///    Cross-Entropy, Wijmans et al., 2024, does per block).
/// Softcap, smoothing and weights act on p before the choice; the uniform part of label smoothing is never
/// filtered. Class probabilities as targets, and smoothing under a softcap, leave nothing sparse: the filter
/// acts, and products are dense.
///
/// Sums of exponentials are f32 or wider and the loss is summed in f64 everywhere. Only gradients that are
/// wanted are computed. A K-dimensional weight and probabilities that require a gradient take the reference
/// path, with one warning per process and cause.
///
/// Throws what cross_entropy does, beginning with [linear_cross_entropy]; ValueError on shapes of weight and
/// bias and on option sizes that disagree, or a stochastic filter without filter_numbers; TypeError on
/// dtypes; RuntimeError on an acc_dtype that the input's dtype does not allow and, from backward, on a second
/// backward where it works once.
Tensor linear_cross_entropy(const Tensor& input, const Tensor& weight, const Tensor& target,
                            const LinearCrossEntropyArgs& args = {});

}  // namespace tapehead
