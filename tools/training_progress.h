// How a run is doing, in a line on standard error.
#pragma once

#include <string>

#include "tapehead/models/trainer.h"
#include "tapehead/tools/progress_line.h"

namespace tapehead {

class TrainingProgress {
 public:
  /// Of `trainer`, which outlives it. Every `log_every` steps there is a line of its own; 0: never.
  TrainingProgress(const Trainer& trainer, int64_t log_every) : trainer_(trainer), log_every_(log_every) {}

  /// To be called after every step.
  void step(const StepMetrics& metrics);
  /// Makes room for other output.
  void clear() { line_.clear(); }

 private:
  std::string describe(const StepMetrics& metrics);

  const Trainer& trainer_;
  int64_t log_every_;
  ProgressLine line_;
  int64_t steps_ = 0, tokens_ = 0;  // since it was made
  double seconds_ = 0;
  double floor_seconds_ = 0;  // what a step's matrix products alone take; measured for the first line
};

}  // namespace tapehead
