// Everything that a run depends on besides its tokens.
#pragma once

#include <string>

#include "tapehead/models/language_model.h"
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

/// The defaults are those of tools/quickstart.
struct TrainConfig {
  ModelConfig model = {};
  /// Of weights, activations and gradients: f32 or bf16. The loss, statistics of softmax
  /// and norms, and what the optimiser keeps are f32 in either case.
  DType dtype = DType::f32;
  int64_t steps = 250;
  int64_t batch_size = 16;       ///< windows of model.n_positions tokens in one step
  int64_t micro_batch_size = 0;  ///< windows computed at once, less memory for the same step; 0: batch_size
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
  int64_t eval_interval = 100;  ///< steps between evaluations on the held-out tokens; 0: only at the end
  int64_t save_interval = 0;    ///< steps between checkpoints; 0: only when run() returns
  int64_t keep = 0;             ///< how many numbered checkpoints stay beside the latest
  bool keep_best = false;       ///< also the checkpoint of the lowest held-out loss so far
  HeadConfig head = {};
  std::string freeze = {};  ///< patterns of parameters that are not trained (freeze.h)
  bool recompute_activations =
      false;                   ///< backward runs each block again, instead of keeping what it computed
  bool document_mask = false;  ///< attention stays within a document
  uint64_t seed = 0;           ///< of initialisation, order of windows, dropout
  /// Folder of the tokenizer that made the tokens, kept for whoever reads a checkpoint.
  std::string tokenizer = {};

  bool operator==(const TrainConfig&) const = default;

  /// Throws ValueError that names the field, its value and the rule.
  void validate() const;
  Schedule learning_rates() const;
  int64_t micro_batch() const { return micro_batch_size > 0 ? micro_batch_size : batch_size; }
};

}  // namespace tapehead
