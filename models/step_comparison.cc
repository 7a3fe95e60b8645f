#include "tapehead/models/step_comparison.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tapehead/core/tape_observer.h"
#include "tapehead/models/batch_gradient.h"

namespace tapehead {

// Returns the names of what the optimiser has made.
static std::vector<std::string> make_step(const TrainConfig& config, const ParameterList& weights,
                                          const Batch& batch, Device device) {
  const DeviceGuard guard(device);
  const auto model = make_model(config.model, config.seed, config.dtype);
  {
    const NoGradGuard no_grad;
    for (size_t i = 0; i < weights.size(); ++i)
      Tensor(model->parameters().at(i).second).copy_from(weights[i].second);
  }
  const auto optimizer = make_optimizer(model->parameters(), config.optimizer);
  StepNumbers numbers{.dropout = {.seed = config.seed}, .filter = {.seed = config.seed + 1}};
  add_batch_gradient(*model, batch, config, numbers);
  Tensor norm = Tensor::scalar(gradient_norm(model->parameters()), DType::f64);
  TapeObserver::tell_result("gradient_norm", norm, {});
  optimizer->step(config.peak_lr, clip_scale(norm.item(), config.clip_norm));
  std::vector<std::string> names;
  const NoGradGuard no_grad;
  for (const ParameterList& list : {model->parameters(), optimizer->state()}) {
    for (const auto& [name, tensor] : list) {
      Tensor value = tensor;
      TapeObserver::tell_result(config.optimizer.name.c_str(), value, {});
      names.push_back(name);
    }
  }
  return names;
}

std::vector<Difference> compare_step(TrainConfig config, const ParameterList& weights, const Batch& batch,
                                     Device reference, Device tested) {
  config.validate();
  if (config.head.acc_policy == "auto") config.head.acc_policy = "accurate";
  config.head.gradient_filter = "none";
  std::vector<std::string> names;
  std::vector<Difference> differences =
      compare_runs([&] { names = make_step(config, weights, batch, reference); },
                   [&] { make_step(config, weights, batch, tested); });
  for (size_t i = 0; i < names.size(); ++i)
    differences[differences.size() - names.size() + i].name = names[i];
  return differences;
}

int64_t longest_sum(const TrainConfig& config) {
  const ModelConfig& model = config.model;
  return std::max({config.micro_batch() * model.n_positions, model.n_embd, model.inner(), model.vocab_size});
}

double step_tolerance(DType dtype, int64_t longest_sum) {
  const double sums = 8 * std::sqrt(static_cast<double>(longest_sum)) * 0x1p-24;
  return is_half(dtype) ? epsilon(dtype) / 4 + sums : sums;
}

}  // namespace tapehead
