// What a run depends on whatever it trains: its length, learning rates, updates and loss, and what happens
// between its steps.
#pragma once

#include <string>

#include "tapehead/models/optimizer.h"
#include "tapehead/models/schedule.h"
#include "tapehead/ops/linear_cross_entropy.h"

namespace tapehead {

/// How the head computes the loss, in the words of LinearCrossEntropyArgs and LinearCrossEntropyOptions.
struct HeadConfig {
  std::string chunking_method = "throughput";
  int64_t batch_chunk_size = 0;  ///< rows of logits held at once; 0: the method's choice
  std::string acc_policy = "auto";
  bool recompute = false;
  double label_smoothing = 0;  ///< of training alone
  double z_loss = 0;           ///< of training alone
  std::string gradient_filter = "none";

  bool operator==(const HeadConfig&) const = default;

  /// The loss of training: f32 whatever the model's dtype, and 0 for a micro-batch in
  /// which nothing is to be learnt. Throws ValueError on a field that cannot be.
  LinearCrossEntropyArgs training_args() const;
  /// Cross entropy itself, summed over the targets: what is measured.
  LinearCrossEntropyArgs evaluation_args() const;
};

/// The defaults are those of tools/quickstart, which also saves every 250 steps.
struct RunConfig {
  int64_t steps = 250;
  int64_t batch_size = 16;          ///< what one step learns from: contexts, or rows of features
  std::string schedule = "cosine";  ///< Schedule's name
  double peak_lr = 1e-3;
  double min_lr = 1e-4;
  int64_t warmup_steps = 25;
  int64_t decay_steps = 0;  ///< of the schedule wsd; 0: a tenth of the steps
  OptimizerOptions optimizer = {};
  double clip_norm = 1;  ///< of the gradient; 0: no clipping
  /// Skip a step whose loss or gradient norm is more than so many standard deviations above its recent
  /// mean (StepGuard); 0: never.
  double skip_z_score = 0;
  int64_t eval_interval = 100;  ///< steps between evaluations on what is held out; 0: only at the end
  int64_t save_interval = 0;    ///< steps between checkpoints; 0: only when run() returns
  int64_t keep = 0;             ///< how many numbered checkpoints stay beside the latest
  bool keep_best = false;       ///< also the checkpoint of the lowest held-out loss so far
  HeadConfig head = {};
  uint64_t seed = 0;  ///< of all random numbers

  bool operator==(const RunConfig&) const = default;

  /// Throws ValueError that names the field, its value and the rule.
  void validate() const;
  Schedule learning_rates() const;
};

}  // namespace tapehead
