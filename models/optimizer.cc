#include "tapehead/models/optimizer.h"

#include <algorithm>
#include <cmath>

#include "tapehead/models/muon.h"

namespace tapehead {

static std::vector<Tensor> gradients_of(const ParameterList& parameters) {
  std::vector<Tensor> gradients;
  for (const auto& [name, p] : parameters) {
    if (p.requires_grad() && p.grad().defined()) gradients.push_back(p.grad());
  }
  return gradients;
}

double gradient_norm(const ParameterList& parameters) { return global_norm(gradients_of(parameters)); }

Tensor loss_and_squared_norm(const Tensor& loss, const ParameterList& parameters) {
  Tensor both({2}, DType::f64, loss.device());
  both.alias({}, {}, 0).copy_from(loss);
  both.alias({}, {}, 1).copy_from(squared_norm(gradients_of(parameters)).to(loss.device()));
  return both;
}

LossAndNorm read_loss_and_norm(const Tensor& loss_and_squared_norm) {
  const std::vector<double> numbers = loss_and_squared_norm.to_vector<double>();
  return {numbers[0], std::sqrt(numbers[1])};
}

LossAndNorm read_loss_and_norm(const Tensor& loss, const ParameterList& parameters) {
  return read_loss_and_norm(loss_and_squared_norm(loss, parameters));
}

double clip_scale(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1;
}

void OptimizerOptions::validate() const {
  check<ValueError>(name == "adamw" || name == "sgd" || name == "muon",
                    "[optimizer] name is {}: it is adamw, sgd or muon", name);
  const auto fraction = [](double value, const char* field) {
    check<ValueError>(value >= 0 && value < 1, "[optimizer] {} is {}: it must be in [0, 1)", field, value);
  };
  fraction(beta1, "beta1");
  fraction(beta2, "beta2");
  fraction(momentum, "momentum");
  check<ValueError>(epsilon > 0, "[optimizer] epsilon is {}: it must be positive", epsilon);
  check<ValueError>(weight_decay >= 0, "[optimizer] weight_decay is {}: it must be at least 0", weight_decay);
}

// ---- What all have

Optimizer::Optimizer(const char* op, ParameterList parameters) : parameters_(std::move(parameters)) {
  for (const auto& [name, p] : parameters_) {
    check<TypeError>(is_floating(p.dtype()), "[{}] parameter {} is {}, but must be floating", op, name,
                     p.dtype());
    master_.push_back(is_half(p.dtype()) ? p.to(arithmetic_dtype(p.dtype())) : Tensor());
  }
}

Tensor Optimizer::zeros_for(const Tensor& parameter) {
  return Tensor::zeros(parameter.shape(), arithmetic_dtype(parameter.dtype()), parameter.device());
}

static void check_learning_rate(double learning_rate) {
  check<ValueError>(learning_rate >= 0, "[optimizer] learning rate {}: it must be at least 0", learning_rate);
}

void Optimizer::step(double learning_rate, double gradient_scale) {
  check_learning_rate(learning_rate);
  ++steps_;
  update({.learning_rate = learning_rate, .gradient_scale = gradient_scale});
}

void Optimizer::count_step(double learning_rate, double gradient_scale, StepOnDevice& on_device) {
  check_learning_rate(learning_rate);
  ++steps_;
  on_device.copy_from(Tensor::from<double>({3}, {learning_rate, gradient_scale, static_cast<double>(steps_)},
                                           on_device.device()));
}

std::vector<Optimizer::Group> Optimizer::groups(const std::vector<const Tensors*>& lists) const {
  std::vector<Group> groups;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& p = parameters_[i].second;
    const auto has = [&](const Tensors* list) { return (*list)[i].defined(); };
    if (!p.grad().defined() || !std::ranges::all_of(lists, has)) continue;
    auto group = std::ranges::find_if(
        groups, [&](const Group& g) { return g.p[0].dtype() == p.dtype() && g.decays == decays(p); });
    if (group == groups.end())
      group = groups.insert(group, Group{.decays = decays(p), .kept = std::vector<Tensors>(lists.size())});
    group->p.push_back(p);
    group->g.push_back(p.grad());
    for (size_t k = 0; k < lists.size(); ++k) group->kept[k].push_back((*lists[k])[i]);
    if (master_[i].defined()) group->master.push_back(master_[i]);
  }
  return groups;
}

static void append_named(const std::string& prefix, const ParameterList& parameters,
                         const std::vector<Tensor>& tensors, ParameterList& list) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined()) list.emplace_back(prefix + parameters[i].first, tensors[i]);
  }
}

ParameterList Optimizer::state() const {
  ParameterList list;
  for (const auto& [what, tensors] : kept()) append_named(what + ".", parameters_, *tensors, list);
  append_named("master.", parameters_, master_, list);
  return list;
}

ParameterList Optimizer::masters() const {
  ParameterList list;
  append_named("", parameters_, master_, list);
  return list;
}

// ---- AdamW

static constexpr auto kAll = [](const auto&) { return true; };

AdamWOptimizer::AdamWOptimizer(ParameterList parameters, const OptimizerOptions& options)
    : AdamWOptimizer("adamw", std::move(parameters), options, kAll) {}

void AdamWOptimizer::update(const Step& step) {
  for (Group& group : groups({&first_, &second_})) {
    const AdamW numbers{.learning_rate = step.learning_rate,
                        .beta1 = options_.beta1,
                        .beta2 = options_.beta2,
                        .epsilon = options_.epsilon,
                        .weight_decay = group.decays ? options_.weight_decay : 0,
                        .step = steps(),
                        .gradient_scale = step.gradient_scale,
                        .on_device = step.on_device};
    adamw_step(numbers, group.p, group.g, group.kept[0], group.kept[1], group.master);
  }
}

std::vector<std::pair<std::string, const Optimizer::Tensors*>> AdamWOptimizer::kept() const {
  return {{"first", &first_}, {"second", &second_}};
}

// ---- SGD

SgdOptimizer::SgdOptimizer(ParameterList parameters, const OptimizerOptions& options)
    : Optimizer("sgd", std::move(parameters)), options_(validated(options)) {
  momentum_ = zeros([&](const auto&) { return options_.momentum > 0; });
}

void SgdOptimizer::update(const Step& step) {
  const bool has_momentum = options_.momentum > 0;
  std::vector<const Tensors*> lists;
  if (has_momentum) lists.push_back(&momentum_);
  for (Group& group : groups(lists)) {
    const Sgd numbers{.learning_rate = step.learning_rate,
                      .momentum = options_.momentum,
                      .weight_decay = group.decays ? options_.weight_decay : 0,
                      .nesterov = options_.nesterov && has_momentum,
                      .gradient_scale = step.gradient_scale,
                      .on_device = step.on_device};
    sgd_step(numbers, group.p, group.g, has_momentum ? group.kept[0] : std::span<Tensor>(), group.master);
  }
}

std::vector<std::pair<std::string, const Optimizer::Tensors*>> SgdOptimizer::kept() const {
  return {{"momentum", &momentum_}};
}

// ---- The choice

int64_t optimizer_bytes(const ParameterList& parameters, const OptimizerOptions& options) {
  int64_t bytes = 0;
  for (const auto& parameter : parameters) {
    const Tensor& p = parameter.second;
    if (!p.requires_grad()) continue;
    int64_t lists = is_half(p.dtype()) ? 1 : 0;  // the master weight
    if (options.name == "sgd") {
      lists += options.momentum > 0 ? 1 : 0;
    } else {
      lists += options.name == "muon" && MuonOptimizer::is_layer_matrix(parameter) ? 1 : 2;
    }
    bytes += lists * p.numel() * size_of(arithmetic_dtype(p.dtype()));
  }
  return bytes;
}

std::unique_ptr<Optimizer> make_optimizer(const ParameterList& parameters, const OptimizerOptions& options) {
  options.validate();
  ParameterList trainable;
  for (const auto& parameter : parameters) {
    if (parameter.second.requires_grad()) trainable.push_back(parameter);
  }
  if (options.name == "sgd") return std::make_unique<SgdOptimizer>(std::move(trainable), options);
  if (options.name == "muon") return std::make_unique<MuonOptimizer>(std::move(trainable), options);
  return std::make_unique<AdamWOptimizer>(std::move(trainable), options);
}

}  // namespace tapehead
