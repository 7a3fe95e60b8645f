// What every command that trains takes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "tapehead/models/train_config.h"
#include "tapehead/tools/command_line.h"

namespace tapehead {

/// The fields that these options set, of a TrainConfig or a HeadTrainConfig.
struct RunOptions {
  OptimizerOptions& optimizer;
  std::string& schedule;
  double &peak_lr, &min_lr;
  int64_t &warmup_steps, &decay_steps;
  double &clip_norm, &skip_z_score;
  int64_t &eval_interval, &save_interval, &keep;
  bool& keep_best;
  HeadConfig& head;

  static RunOptions of(auto& c) {
    return {c.optimizer,   c.schedule,  c.peak_lr,      c.min_lr,        c.warmup_steps,
            c.decay_steps, c.clip_norm, c.skip_z_score, c.eval_interval, c.save_interval,
            c.keep,        c.keep_best, c.head};
  }
};

/// Optimiser, schedule, head, and what happens between steps.
void add_run_options(Command command, const RunOptions& run);

/// --resume. It excludes the options that the command has so far, which describe a new run, but for those
/// `allowed`.
void add_resume_option(Command command, std::string& folder, std::initializer_list<std::string> allowed = {});

}  // namespace tapehead
