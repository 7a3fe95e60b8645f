// A process that trains in a run's folder: it begins a run there, or goes on with the one that it finds.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tapehead/models/memory_plan.h"
#include "tapehead/models/training_run.h"
#include "tapehead/tools/command_line.h"
#include "tapehead/tools/run_arguments.h"
#include "tapehead/tools/run_folder.h"
#include "tapehead/tools/run_lock.h"
#include "tapehead/tools/training_progress.h"

namespace tapehead {

/// A run, as far as people are told of it, and what else is done as it goes.
struct RunDescription {
  std::string headline;  ///< printed first, once a signal no longer ends the process at once
  ProgressSubject subject;
  std::string subtitle = {};   ///< of the loss curve
  std::string unit = "token";  ///< what a loss is per
  int64_t held_out_bytes = 0;  ///< of text, for bits per byte; 0: not known
  // Whose memory is counted in the run's first step (count_first_step()).
  ParameterList parameters = {};
  std::vector<Tensor> of_head = {};
  std::function<void(int64_t step)> on_evaluation = {};
};

/// Has the right to train in the folder while it lives (run_lock.h).
class RunSession {
 public:
  /// For `command`, the one that trains: in arguments.out a new run or, where that is named, the one in
  /// arguments.resume. Throws ValueError if the first holds a run already, or the second none, and what
  /// RunLock does.
  RunSession(const Command& command, const RunArguments& arguments);

  const RunFolder& folder() const { return folder_; }

  /// How the run ended, if all `steps` are made by `step` already and it has left a summary; says so on
  /// standard output. Without one, that end is to be made up for: no steps are left, only the evaluation.
  std::optional<nlohmann::ordered_json> ended(int64_t step, int64_t steps) const;

  /// Writes config.json: the options that the command has, but for those in `without` and what finds the run.
  void write_config(std::vector<std::string> without = {}) const;

  /// Trains what is left: history, progress, checkpoints, loss curve, and the memory of a first step beside
  /// its `plan`. If a signal stopped it, prints the command that goes on with it, and ends the process by that
  /// signal.
  RunResult train(TrainingRun& run, const RunDescription& description, const MemoryPlan& plan);

  /// Writes summary.json: how the run ended.
  void write_summary(const nlohmann::ordered_json& summary) const;

 private:
  Command command_;
  RunFolder folder_;
  RunLock lock_;
  int64_t log_every_;
};

}  // namespace tapehead
