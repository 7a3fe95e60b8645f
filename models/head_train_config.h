// Everything that the training of a head alone depends on besides its features.
#pragma once

#include <limits>

#include "tapehead/models/run_config.h"

namespace tapehead {

/// The op's lists of kept gradients number classes in 32 bits.
inline constexpr int64_t kMostHeadClasses = std::numeric_limits<int32_t>::max();

/// A step's batch is of rows of features. The seed is that of the rows' split and order, and of the gradient
/// filter.
struct HeadTrainConfig : RunConfig {
  /// The defaults are those of a problem that is convex and begins at zero.
  HeadTrainConfig()
      : RunConfig{.steps = 1000,
                  .batch_size = 4096,
                  .peak_lr = 1e-2,
                  .min_lr = 0,
                  .warmup_steps = 0,
                  .optimizer = {.weight_decay = 0},
                  .clip_norm = 0,
                  .eval_interval = 0} {}

  int64_t classes = 0;  ///< at most kMostHeadClasses; 0: the largest target and one
  bool bias = false;
  double held_out = 0.05;  ///< fraction of the rows, chosen by seed, that are only measured on

  bool operator==(const HeadTrainConfig&) const = default;

  /// Throws ValueError that names the field, its value and the rule.
  void validate() const;
};

}  // namespace tapehead
