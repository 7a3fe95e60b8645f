#include "tapehead/models/captured_step.h"

namespace tapehead {

void CapturedStep::check_possible(const TrainConfig& config, Device device) {
  check<ValueError>(device_runtime(device).can_capture(),
                    "[capture] the {} records no steps: train on a device that does, or without capture",
                    device);
  check<ValueError>(
      config.head.gradient_filter == "none",
      "[capture] gradient_filter is {}: the host counts what a filter leaves, and a recorded step does "
      "not wait for it",
      config.head.gradient_filter);
  check<ValueError>(
      config.optimizer.name != "muon",
      "[capture] the optimizer is muon: it divides by norms that the host reads, and a recorded step "
      "does not wait for them");
}

static Batch moved(const Batch& batch, Device device) {
  Batch there = batch;
  for (Tensor* x : {&there.ids, &there.targets, &there.first_seen}) {
    if (x->defined()) *x = x->to(device);
  }
  return there;
}

CapturedStep::CapturedStep(const LanguageModel& model, Optimizer& optimizer, const TrainConfig& config,
                           const Batch& batch, const StepNumbers& numbers)
    : optimizer_(optimizer),
      batch_(moved(batch, model.device())),
      numbers_(numbers),
      step_({3}, DType::f64, model.device()) {
  check_possible(config, model.device());
  const auto available = [&] { return device_runtime(model.device()).available_memory().value_or(0); };
  const int64_t before = available();
  try {
    gradient_.emplace(
        model.device(),
        [&] {
          const BatchGradient result = add_batch_gradient(model, batch_, config, numbers_);
          loss_and_norm_ = loss_and_squared_norm(result.loss, optimizer_.parameters());
          head_ = result.head;
        },
        std::vector<Generator*>{&numbers_.dropout});
    update_.emplace(model.device(), [&] { optimizer_.apply(step_); });
  } catch (...) {
    optimizer_.zero_grad();
    throw;
  }
  optimizer_.zero_grad();
  reserved_bytes_ = before - available();
}

LossAndNorm CapturedStep::gradient(const Batch& batch, StepNumbers& numbers) {
  batch_.ids.copy_from(batch.ids);
  batch_.targets.copy_from(batch.targets);
  if (batch_.first_seen.defined()) batch_.first_seen.copy_from(batch.first_seen);
  numbers_ = numbers;
  gradient_->replay();
  numbers = numbers_;
  return read_loss_and_norm(loss_and_norm_);
}

void CapturedStep::update(double learning_rate, double gradient_scale) {
  optimizer_.count_step(learning_rate, gradient_scale, step_);
  update_->replay();
}

}  // namespace tapehead
