#include "tapehead/models/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "tapehead/ops/optimizer.h"

namespace tapehead {

AdamWOptimizer::AdamWOptimizer(ParameterList parameters, const AdamWOptions& options)
    : parameters_(std::move(parameters)), options_(options) {
  for (const auto& [name, p] : parameters_) {
    check<TypeError>(is_floating(p.dtype()), "[adamw] parameter {} is {}, but must be floating", name,
                     p.dtype());
    const DType wide = arithmetic_dtype(p.dtype());
    first_.push_back(Tensor::zeros(p.shape(), wide, p.device()));
    second_.push_back(Tensor::zeros(p.shape(), wide, p.device()));
    master_.push_back(is_half(p.dtype()) ? p.to(wide) : Tensor());
  }
}

double AdamWOptimizer::step(double learning_rate, double max_norm) {
  // One list for each dtype, with and without weight decay.
  struct Group {
    std::vector<Tensor> p, g, m, v, master;
  };
  std::map<std::pair<DType, bool>, Group> groups;
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& p = parameters_[i].second;
    if (!p.grad().defined()) continue;
    Group& group = groups[{p.dtype(), p.dim() >= 2}];
    group.p.push_back(p);
    group.g.push_back(p.grad());
    group.m.push_back(first_[i]);
    group.v.push_back(second_[i]);
    if (master_[i].defined()) group.master.push_back(master_[i]);
    gradients.push_back(p.grad());
  }
  const double norm = global_norm(gradients);
  check<RuntimeError>(std::isfinite(norm),
                      "[adamw] the gradient's norm is {} at step {}: training diverged; lower the learning "
                      "rate or warm up longer",
                      norm, steps_ + 1);
  AdamW numbers{.learning_rate = learning_rate,
                .beta1 = options_.beta1,
                .beta2 = options_.beta2,
                .epsilon = options_.epsilon,
                .weight_decay = 0,
                .step = ++steps_,
                .gradient_scale = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1};
  for (auto& [key, group] : groups) {
    numbers.weight_decay = key.second ? options_.weight_decay : 0;
    adamw_step(numbers, group.p, group.g, group.m, group.v, group.master);
  }
  zero_grad(parameters_);
  return norm;
}

static ParameterList with_names(const ParameterList& parameters, const std::vector<Tensor>& tensors) {
  ParameterList list;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined()) list.emplace_back(parameters[i].first, tensors[i]);
  }
  return list;
}

ParameterList AdamWOptimizer::first_moments() const { return with_names(parameters_, first_); }
ParameterList AdamWOptimizer::second_moments() const { return with_names(parameters_, second_); }
ParameterList AdamWOptimizer::masters() const { return with_names(parameters_, master_); }

}  // namespace tapehead
