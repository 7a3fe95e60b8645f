// Layers: named parameters, and what is computed from them. Plain structs, whose copies share parameters.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tapehead/core/tape.h"

namespace tapehead {

/// Parameters, or what belongs to each, under the names that files know them by, in the model's order.
using ParameterList = std::vector<std::pair<std::string, Tensor>>;

/// Clears the gradients of all parameters.
void zero_grad(const ParameterList& parameters);

/// y = x W + b: (..., in) -> (..., out). GPT-2's files hold W as (in, out), torch.nn.Linear's transposed.
struct Conv1D {
  Tensor weight;  ///< (in, out)
  Tensor bias;    ///< (out)

  Tensor operator()(const Tensor& x) const;
  /// Appends prefix + "weight" and prefix + "bias".
  void name_parameters(const std::string& prefix, ParameterList& list) const;
};

/// Each row of x (..., F) to mean 0 and variance 1, then scaled and shifted (Ba et al., 2016).
struct LayerNorm {
  Tensor weight, bias;  ///< (F)
  double epsilon = 1e-5;

  Tensor operator()(const Tensor& x) const;
  void name_parameters(const std::string& prefix, ParameterList& list) const;
};

}  // namespace tapehead
