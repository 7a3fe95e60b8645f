// How a run is doing, in a line on standard error.
#pragma once

#include <string>

#include "tapehead/models/training_run.h"
#include "tapehead/tools/progress_line.h"

namespace tapehead {

/// A run, as far as its progress line tells of it.
struct ProgressSubject {
  int64_t steps;     ///< in all
  const char* unit;  ///< of targets: "tokens", "rows"
  DType dtype;
  Device device;
  double step_flops;  ///< of the matrix products of a step (product_floor.h)
};

class TrainingProgress {
 public:
  /// Every `log_every` steps there is a line of its own; 0: never.
  TrainingProgress(const ProgressSubject& subject, int64_t log_every)
      : subject_(subject), log_every_(log_every) {}

  /// To be called after every step.
  void step(const StepMetrics& metrics);
  /// Makes room for other output.
  void clear() { line_.clear(); }

 private:
  std::string describe(const StepMetrics& metrics);

  ProgressSubject subject_;
  int64_t log_every_;
  ProgressLine line_;
  int64_t steps_ = 0, targets_ = 0;  // since it was made
  double seconds_ = 0;
  double floor_seconds_ = 0;  // what a step's matrix products alone take; measured for the first line
};

}  // namespace tapehead
