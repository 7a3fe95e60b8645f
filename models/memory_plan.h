// How much memory a training step will take, before the first one.
#pragma once

#include <cstdint>

#include "tapehead/models/train_config.h"

namespace tapehead {

/// Bytes of tensors, by what they are for. Exact, but for the recording and the peak.
struct MemoryPlan {
  int64_t parameters = 0;
  int64_t gradients = 0;    ///< of the parameters that are trained
  int64_t optimizer = 0;    ///< moments, momenta, master weights
  int64_t activations = 0;  ///< what forward keeps for backward
  /// Chunks of logits, and gradients of hidden state and weight: plan_linear_cross_entropy's.
  int64_t head = 0;

  /// Of a recorded step (captured_step.h), else 0: what it keeps from all others to the run's end. Tensors of
  /// different sizes do not follow each other in its memory, so here activations, head and gradients add up.
  int64_t recording = 0;

  /// At once: gradients pile up while activations are freed, so whichever are more count; with a recording,
  /// that. What the backward of one block takes while it runs is not in it: up to 15 % of the peak in a model
  /// of three layers, less in deeper ones. Nor is, beside a recording, an evaluation, or a batch that it does
  /// not fit.
  int64_t peak = 0;
};

/// Bytes of the parameters of a model that does not stand yet: counted on models of one
/// and two of its blocks, since every size is linear in layers, vocabulary and positions.
/// Throws what ModelConfig::validate does.
int64_t parameter_bytes(const ModelConfig& model, DType dtype);

/// Plans for one model with micro-batches of any size. What a row of activations takes is
/// counted on two short rows of tokens that go through the model, so it is true of every
/// architecture; that takes a small part of a step.
class MemoryPlanner {
 public:
  /// `model`: with the parameters frozen that will be; `recorded`: whether the device will record the step.
  /// Throws what a step of it does: OutOfMemoryError, for one.
  MemoryPlanner(const LanguageModel& model, const TrainConfig& config, bool recorded = false);

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
