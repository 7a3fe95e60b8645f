// Whether a step is to be made: a batch whose loss or gradient norm leaps would undo what many good ones did.
#pragma once

#include <cstdint>

namespace tapehead {

/// Mean and variance of a series, its newest values weighing most: exponential averages with the
/// factor 0.98 (about the last 50), corrected for their start at zero as Adam's moments are.
struct RunningStatistics {
  double mean_sum = 0, square_sum = 0;  ///< Σ weight · x and Σ weight · x², weights 0.02 · 0.98^age
  int64_t count = 0;

  bool operator==(const RunningStatistics&) const = default;

  void add(double x);
  double mean() const;
  double deviation() const;
  /// How many standard deviations x is above the mean.
  double z_score(double x) const;
};

/// A step is skipped if, after at least 20 that were made, z(x) = (x - mean) / deviation
/// is above the limit for x the loss or x the gradient's norm. Steps that are skipped do
/// not count in mean and deviation. After 5 skipped in a row the leap is the new level,
/// not a bad batch: the next step is made, and the statistics begin anew.
struct StepGuard {
  static constexpr int64_t kFirst = 20, kMostInARow = 5;

  RunningStatistics loss, norm;
  int64_t in_a_row = 0;  ///< steps skipped since the last that was made

  bool operator==(const StepGuard&) const = default;

  /// Decides on a step and takes note of it; true: skip. A `limit` of 0 skips nothing.
  bool skips(double step_loss, double gradient_norm, double limit);
};

}  // namespace tapehead
