// What holds of everything that is trained: of TrainConfig and of HeadTrainConfig, whose
// fields have the same names.
#pragma once

#include <cmath>

#include "tapehead/core/error.h"
#include "tapehead/models/schedule.h"

namespace tapehead {

Schedule schedule_of(const auto& config) {
  return {.name = config.schedule,
          .peak = config.peak_lr,
          .minimum = config.min_lr,
          .warmup = config.warmup_steps,
          .steps = config.steps,
          .decay = config.decay_steps};
}

/// Throws ValueError that begins with `op` and names the field, its value and the rule.
void check_training(const auto& config, const char* op) {
  const auto at_least = [&](auto value, auto least, const char* field) {
    check<ValueError>(value >= least, "[{}] {} is {}: it must be at least {}", op, field, value, least);
  };
  at_least(config.steps, 1, "steps");
  at_least(config.batch_size, 1, "batch_size");
  at_least(config.peak_lr, 0.0, "peak_lr");
  at_least(config.min_lr, 0.0, "min_lr");
  at_least(config.warmup_steps, 0, "warmup_steps");
  at_least(config.decay_steps, 0, "decay_steps");
  at_least(config.clip_norm, 0.0, "clip_norm");
  at_least(config.skip_z_score, 0.0, "skip_z_score");
  at_least(config.eval_interval, 0, "eval_interval");
  at_least(config.save_interval, 0, "save_interval");
  at_least(config.keep, 0, "keep");
  config.head.training_args();           // throws
  schedule_of(config).at(config.steps);  // throws
  config.optimizer.validate();
  check<ValueError>(std::isfinite(config.peak_lr) && config.min_lr <= config.peak_lr,
                    "[{}] min_lr is {} and peak_lr {}: min_lr must not be larger", op, config.min_lr,
                    config.peak_lr);
}

}  // namespace tapehead
