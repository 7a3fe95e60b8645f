// Everything that the training of a head alone depends on besides its features.
#pragma once

#include <limits>
#include <string>

#include "tapehead/models/train_config.h"

namespace tapehead {

/// The op's lists of kept gradients number classes in 32 bits.
inline constexpr int64_t kMostHeadClasses = std::numeric_limits<int32_t>::max();

/// Fields that TrainConfig has, too, mean the same here.
struct HeadTrainConfig {
  int64_t classes = 0;  ///< at most kMostHeadClasses; 0: the largest target and one
  bool bias = false;
  int64_t steps = 1000;
  int64_t batch_size = 4096;  ///< rows in a step
  std::string schedule = "cosine";
  double peak_lr = 1e-2, min_lr = 0;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;
  OptimizerOptions optimizer = {.weight_decay = 0};
  double clip_norm = 0, skip_z_score = 0;
  int64_t eval_interval = 0;
  int64_t save_interval = 0;
  int64_t keep = 0;
  bool keep_best = false;
  HeadConfig head = {};
  double held_out = 0.05;  ///< fraction of the rows, chosen by seed, that are only measured on
  uint64_t seed = 0;       ///< of the rows' split and order, and of the gradient filter

  bool operator==(const HeadTrainConfig&) const = default;

  /// Throws ValueError that names the field, its value and the rule.
  void validate() const;
  Schedule learning_rates() const;
};

}  // namespace tapehead
