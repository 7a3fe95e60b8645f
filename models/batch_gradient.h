// Loss and gradient of a batch, computed in micro-batches.
#pragma once

#include "tapehead/models/batches.h"
#include "tapehead/models/train_config.h"

namespace tapehead {

/// The head's memory in one micro-batch of N rows, C classes and F features: as counted
/// in the scope "head", and what the full logits would take.
struct HeadMemory {
  int64_t peak_bytes = 0;      ///< counted: everything that the loss and its backward allocated at once
  int64_t gradient_bytes = 0;  ///< of it, the gradients that any path has: hidden state (N, F), weight (C, F)
  int64_t full_logits_bytes = 0;  ///< (N, C) logits and their gradient, which the chunks replace

  /// Of each the larger.
  void include(const HeadMemory& other);
};

/// Random numbers that a step draws, and where they stand.
struct StepNumbers {
  Generator dropout = {};
  Generator filter = {};  ///< of the head's gradient filter
};

struct BatchGradient {
  Tensor loss;                      ///< nats per target token: f64, of shape (), on the model's device
  GradientFilterStats filter = {};  ///< all 0 without a gradient filter
  HeadMemory head = {};
};

/// Adds the gradient of the batch's mean loss per target to those of the model's parameters. Every
/// micro-batch divides by the tokens of the whole batch, so that their gradients add up to the batch's own.
/// Throws what LanguageModel::loss does, and OutOfMemoryError; gradients of earlier micro-batches stay then.
BatchGradient add_batch_gradient(const LanguageModel& model, const Batch& batch, const TrainConfig& config,
                                 StepNumbers& numbers);

}  // namespace tapehead
