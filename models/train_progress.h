// What a run has behind it.
#pragma once

#include <cstdint>

#include "tapehead/models/step_guard.h"

namespace tapehead {

struct TrainProgress {
  int64_t step = 0;            ///< made or skipped
  RunningStatistics loss;      ///< whose mean is the smoothed loss
  StepGuard guard;             ///< the statistics behind skip_z_score
  int64_t evaluated_step = 0;  ///< of the last evaluation
  int64_t best_step = 0;       ///< of the lowest held-out loss; 0: there was no evaluation yet
  double best_loss = 0;

  bool operator==(const TrainProgress&) const = default;
};

}  // namespace tapehead
