// The learning rate over a run.
#pragma once

#include <cstdint>

namespace tapehead {

/// Linear from 0 to `peak` over `warmup` steps, then half a cosine down to `minimum` at the last of `steps`
/// (Loshchilov and Hutter, "SGDR", 2017, without restarts).
struct CosineSchedule {
  double peak;
  double minimum;
  int64_t warmup;
  int64_t steps;

  /// The learning rate of `step`, which counts from 1; past the end, `minimum`.
  double at(int64_t step) const;
};

}  // namespace tapehead
