#include "tapehead/models/module.h"

#include "tapehead/core/view.h"
#include "tapehead/ops/dropout.h"
#include "tapehead/ops/layer_norm.h"
#include "tapehead/ops/matmul.h"
#include "tapehead/ops/random.h"

namespace tapehead {

void zero_grad(const ParameterList& parameters) {
  for (const auto& [name, tensor] : parameters) Tensor(tensor).set_grad({});
}

Tensor Initializer::matrix(int64_t rows, int64_t columns, double deviation) {
  const auto make = [&] {
    switch (values) {
      case unset: return Tensor({rows, columns}, dtype, device);
      case outline: return expand(Tensor::zeros({1, columns}, dtype, device), {rows, columns});
      default: return random_normal({rows, columns}, 0, deviation, generator, dtype, device);
    }
  };
  return make().set_requires_grad();
}

Tensor Initializer::vector(int64_t size, double value) const {
  if (values == outline) return expand(Tensor::zeros({1}, dtype, device), {size}).set_requires_grad();
  return Tensor::full({size}, value, dtype, device).set_requires_grad();
}

Tensor Linear::operator()(const Tensor& x) const { return linear(x, weight, bias); }

void Linear::name_parameters(const std::string& prefix, ParameterList& list) const {
  list.emplace_back(prefix + "weight", weight);
  if (bias.defined()) list.emplace_back(prefix + "bias", bias);
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

Tensor RMSNorm::operator()(const Tensor& x) const { return rms_norm(x, weight, epsilon); }

void RMSNorm::name_parameters(const std::string& prefix, ParameterList& list) const {
  list.emplace_back(prefix + "weight", weight);
}

Tensor drop(const Tensor& x, double p, Generator* numbers) {
  return numbers && p > 0 ? dropout(x, p, *numbers) : x;
}

Tensor split_heads(const Tensor& x, int64_t n_head, int64_t width, int64_t first) {
  const Tensor columns = slice(x, 2, first * width, (first + n_head) * width);
  return transpose(reshape(columns, {x.size(0), x.size(1), n_head, width}), 1, 2);
}

Tensor join_heads(const Tensor& x) {
  return reshape(transpose(x, 1, 2), {x.size(0), x.size(2), x.size(1) * x.size(3)});
}

}  // namespace tapehead
