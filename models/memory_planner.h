// The memory plan of a language model's training step.
#pragma once

#include "tapehead/models/memory_plan.h"
#include "tapehead/models/train_config.h"

namespace tapehead {

/// What a plan depends on beside the config.
struct PlanConditions {
  bool recorded = false;  ///< the device will record the step
  bool loaded = false;    ///< weights come from a file: none are drawn
};

/// Plans for one config with micro-batches of any size, on the device that is the default one when it is
/// made. From shapes alone: parameters are those of the model's outline (Initializer::outline), and what a
/// row of activations takes is counted on two short rows of tokens that go through it. So it is true of every
/// architecture, and takes a small part of a step's time and one matrix's memory.
class MemoryPlanner {
 public:
  /// Throws what TrainConfig::validate and freeze() do.
  explicit MemoryPlanner(const TrainConfig& config, PlanConditions conditions = {});

  /// With `micro_batch` contexts at once.
  MemoryPlan plan(int64_t micro_batch) const;
  MemoryPlan plan() const { return plan(config_.micro_batch()); }

 private:
  TrainConfig config_;
  Device device_;
  MemoryPlan fixed_;  // what does not depend on the micro-batch
  bool recorded_, trains_body_, trains_head_;
  double bytes_per_token_ = 0, bytes_per_position_ = 0, bytes_per_block_token_ = 0;  // of activations
};

}  // namespace tapehead
