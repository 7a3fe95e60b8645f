// What goes on around a run that trains in its folder: history, progress, checkpoints, Ctrl-C, loss curve.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tapehead/models/training_run.h"
#include "tapehead/tools/run_folder.h"
#include "tapehead/tools/run_lock.h"
#include "tapehead/tools/training_progress.h"

namespace tapehead {

struct RunSession {
  RunFolder folder;
  RunLock& lock;
  std::string headline;  ///< printed first, once a signal no longer ends the process at once
  std::string program;   ///< the command that goes on with a run, as in "tapehead train"
  ProgressSubject subject;
  int64_t log_every = 0;
  std::string subtitle = {};   ///< of the loss curve
  std::string unit = "token";  ///< what a loss is per
  int64_t held_out_bytes = 0;  ///< of text, for bits per byte; 0: not known
  std::function<void(const StepMetrics&)> on_step = {};
  std::function<void(int64_t step)> on_evaluation = {};
};

/// Trains what is left. If a signal stopped it, prints the command that goes on with it, and ends the process
/// by that signal.
RunResult train_in_folder(TrainingRun& run, const RunSession& session);

/// Writes summary.json: how a run ended.
void write_summary(const RunFolder& folder, const nlohmann::ordered_json& summary);

/// summary.json, for a run that has ended at `step`. None if there is none, or one of another end, or a
/// damaged one.
std::optional<nlohmann::ordered_json> read_summary(const RunFolder& folder, int64_t step);

}  // namespace tapehead
