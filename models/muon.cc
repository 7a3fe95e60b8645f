#include "tapehead/models/muon.h"

#include <algorithm>
#include <cmath>

#include "tapehead/core/capture.h"
#include "tapehead/ops/elementwise.h"
#include "tapehead/ops/matmul.h"
#include "tapehead/ops/optimizer.h"

namespace tapehead {

static constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kEpsilon = 1e-7;
static constexpr int kIterations = 5;

Tensor orthogonalize(const Tensor& g) {
  const NoGradGuard no_grad;
  // The products are smallest with the short side first.
  const bool tall = g.size(0) > g.size(1);
  Tensor x = contiguous(tall ? transpose(g, 0, 1) : g);
  const Tensor all[] = {x};
  x = x * (1 / std::max(global_norm(all), kEpsilon));
  for (int i = 0; i < kIterations; ++i) {
    const Tensor gram = matmul(x, transpose(x, 0, 1));
    x = x * kA + matmul(gram * kB + matmul(gram, gram) * kC, x);
  }
  return tall ? contiguous(transpose(x, 0, 1)) : x;
}

bool MuonOptimizer::is_layer_matrix(const std::pair<std::string, Tensor>& parameter) {
  const auto& [name, tensor] = parameter;
  bool numbered = false;
  for (size_t begin = 0; begin < name.size() && !numbered;) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = std::string_view(name).substr(begin, end - begin);
    numbered = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    begin = end + 1;
  }
  return numbered && tensor.dim() == 2;
}

MuonOptimizer::MuonOptimizer(ParameterList parameters, const OptimizerOptions& options)
    : AdamWOptimizer("muon", std::move(parameters), options,
                     [](const auto& parameter) { return !is_layer_matrix(parameter); }),
      momentum_(zeros(is_layer_matrix)) {}

void MuonOptimizer::update(const Step& step) {
  for (const Tensor& b : momentum_) {
    if (b.defined()) check_may_wait("muon", b.device(), "a matrix's step is divided by a norm");
  }
  AdamWOptimizer::update(step);
  const NoGradGuard no_grad;
  double learning_rate = step.learning_rate, gradient_scale = step.gradient_scale;
  if (step.on_device.defined()) {
    const std::vector<double> numbers = step.on_device.to_vector<double>();
    learning_rate = numbers[0];
    gradient_scale = numbers[1];
  }
  for (size_t i = 0; i < momentum_.size(); ++i) {
    Tensor p = parameters_[i].second, b = momentum_[i];
    if (!b.defined() || !p.grad().defined()) continue;
    const Tensor g = p.grad().to(b.dtype()) * gradient_scale;
    b.copy_from(b + (g - b) * (1 - options_.momentum));
    const Tensor direction = orthogonalize(options_.nesterov ? g + (b - g) * options_.momentum : b);
    const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(p.size(0), p.size(1))));
    // SGD's kernel without momentum: it knows masters, and decays by its own learning rate.
    const Sgd numbers{.learning_rate = learning_rate * scale,
                      .momentum = 0,
                      .weight_decay = options_.weight_decay / scale,
                      .decoupled = true};
    Tensors none, masters;
    if (master_[i].defined()) masters.push_back(master_[i]);
    sgd_step(numbers, {&p, 1}, {&direction, 1}, none, masters);
  }
}

std::vector<std::pair<std::string, const Optimizer::Tensors*>> MuonOptimizer::kept() const {
  auto lists = AdamWOptimizer::kept();
  lists.emplace_back("momentum", &momentum_);
  return lists;
}

}  // namespace tapehead
