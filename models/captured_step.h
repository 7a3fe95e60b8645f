// A training step that the device has recorded: its gradients and its update, each asked for in one call
// (core/capture.h).
#pragma once

#include <optional>

#include "tapehead/core/capture.h"
#include "tapehead/models/batch_gradient.h"

namespace tapehead {

/// Between the two halves the host reads the loss and the norm, and may leave the update out. Losses, norms
/// and parameters have the bits of steps that were not recorded. Model and optimiser must stay where they
/// are.
class CapturedStep {
 public:
  /// Throws ValueError that says why steps of `config` cannot be recorded on `device`.
  static void check_possible(const TrainConfig& config, Device device);

  /// Whether a recorded step can compute `batch`: each of its rows is full of targets. Losses are divided by
  /// their number, so a recording is for one number alone, and this is the one that comes again.
  static bool fits(const Batch& batch) { return batch.target_tokens == batch.targets.numel(); }

  /// Records a step on batches like `batch`, which fits(), and makes none. No parameter may have a gradient.
  CapturedStep(const LanguageModel& model, Optimizer& optimizer, const TrainConfig& config,
               const Batch& batch, const StepNumbers& numbers);
  CapturedStep(const CapturedStep&) = delete;
  CapturedStep& operator=(const CapturedStep&) = delete;

  /// Of a `batch` that fits(): add_batch_gradient() and the numbers of read_loss_and_norm(), which it waits
  /// for. The gradients are left to update().
  LossAndNorm gradient(const Batch& batch, StepNumbers& numbers);
  /// Optimizer::step() with those gradients.
  void update(double learning_rate, double gradient_scale);

  /// The head's, which each step takes again.
  const HeadMemory& head() const { return head_; }
  /// What the device lacks while this lives: memory for the step's own tensors, gradients included. Blocks of
  /// one size follow each other in the same memory, others do not, so it is more than was ever live.
  int64_t reserved_bytes() const { return reserved_bytes_; }

 private:
  Optimizer& optimizer_;
  // What the recorded halves read and write.
  Batch batch_;
  StepNumbers numbers_;
  StepOnDevice step_;
  Tensor loss_and_norm_;
  HeadMemory head_;
  int64_t reserved_bytes_ = 0;
  std::optional<Capture> gradient_, update_;
};

}  // namespace tapehead
