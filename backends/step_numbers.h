// The numbers of one step of each optimiser: what ops/optimizer.h takes, and hands to a device.
#pragma once

#include "tapehead/core/tensor.h"

namespace tapehead {

/// What changes from step to step, where a step that was recorded (core/capture.h) finds it: f64 (3) on the
/// device, a learning rate, a gradient scale and a count of steps, which take the places of those fields.
/// Undefined: the fields hold.
using StepOnDevice = Tensor;

/// The numbers of stochastic gradient descent for one step (torch.optim.SGD's, with dampening 0).
struct Sgd {
  double learning_rate, momentum, weight_decay;
  bool nesterov = false;
  /// Whether the decay multiplies p by 1 - lr·decay, as AdamW's does, instead of adding
  /// decay·p to the gradient.
  bool decoupled = false;
  double gradient_scale = 1;  ///< multiplies every gradient first
  StepOnDevice on_device = {};
};

/// AdamW's numbers for one step (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019).
struct AdamW {
  double learning_rate, beta1, beta2, epsilon, weight_decay;
  int64_t step;               ///< counts from 1
  double gradient_scale = 1;  ///< multiplies every gradient first: clipping, without a pass of its own
  StepOnDevice on_device = {};
};

}  // namespace tapehead
