#include "tapehead/models/module.h"

#include "tapehead/core/view.h"
#include "tapehead/ops/layer_norm.h"
#include "tapehead/ops/matmul.h"

namespace tapehead {

void zero_grad(const ParameterList& parameters) {
  for (const auto& [name, tensor] : parameters) Tensor(tensor).set_grad({});
}

Tensor Conv1D::operator()(const Tensor& x) const { return linear(x, transpose(weight, 0, 1), bias); }

void Conv1D::name_parameters(const std::string& prefix, ParameterList& list) const {
  list.emplace_back(prefix + "weight", weight);
  list.emplace_back(prefix + "bias", bias);
}

Tensor LayerNorm::operator()(const Tensor& x) const { return layer_norm(x, weight, bias, epsilon); }

void LayerNorm::name_parameters(const std::string& prefix, ParameterList& list) const {
  list.emplace_back(prefix + "weight", weight);
  list.emplace_back(prefix + "bias", bias);
}

}  // namespace tapehead
