// One training step on two devices: which operation, if any, does not compute the same on both.
#pragma once

#include "tapehead/core/run_comparison.h"
#include "tapehead/models/batches.h"
#include "tapehead/models/train_config.h"

namespace tapehead {

/// Forward, backward and update of the same model on the same batch, on `reference` and then on `tested`: the
/// differences of compare_runs(), in their order. Behind those of operations come "gradient_norm", and what
/// the optimiser has made of the parameters and of each tensor that it keeps, under the optimiser's name.
///
/// `weights`: the model's, in its order, on any device. config.head.acc_policy "auto" would mean
/// another one on each device: it becomes "accurate" on both. A gradient filter, which may let
/// roundings decide, is left out. Dropout draws the same numbers. Throws what compare_runs() and
/// TrainConfig::validate() do. Memory of the host: several times what a step computes.
std::vector<Difference> compare_step(TrainConfig config, const ParameterList& weights, const Batch& batch,
                                     Device reference, Device tested);

/// The most numbers that one element of a step's results is a sum of: tokens of a micro-batch, widths, words.
int64_t longest_sum(const TrainConfig& config);

/// How far two devices may be apart, as Difference::error, where both are right. Sums of K terms
/// in two orders differ by about √K · u of their terms' norm (u = 2⁻²⁴, of f32: Higham and Mary,
/// "A new approach to probabilistic rounding error analysis", 2019); 8 leaves room for terms
/// that cancel, and for functions that are right to a few units. A value of 16 bits is rounded
/// once more on each device: where the two go to different neighbours, an epsilon of its dtype
/// is between them. As one element in 16 that gives a quarter of an epsilon.
double step_tolerance(DType dtype, int64_t longest_sum);

}  // namespace tapehead
