// Layers: named parameters, and what is computed from them. Plain structs, whose copies
// share parameters. Errors are those of the operations that they are made of.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tapehead/core/random.h"
#include "tapehead/core/tape.h"

namespace tapehead {

/// Parameters, or what belongs to each, under the names that files know them by, in the model's order.
using ParameterList = std::vector<std::pair<std::string, Tensor>>;

/// Clears the gradients of all parameters.
void zero_grad(const ParameterList& parameters);

/// Makes parameters that require a gradient, drawing from one stream in the order in
/// which they are asked for.
struct Initializer {
  Generator generator = {};
  DType dtype = DType::f32;
  Device device = default_device();
  enum Values : uint8_t {
    drawn,
    /// None yet: they are copied from somewhere next.
    unset,
    /// The shapes alone: the rows of a matrix are one row of zeros, the numbers of a vector one zero. What is
    /// computed with them takes the memory that it takes with others, and they take none.
    outline,
  };
  Values values = drawn;

  /// (rows, columns), normal of mean 0.
  Tensor matrix(int64_t rows, int64_t columns, double deviation);
  Tensor vector(int64_t size, double value) const;
};

/// y = x Wᵀ + b: (..., in) -> (..., out), as torch.nn.Linear.
struct Linear {
  Tensor weight;     ///< (out, in)
  Tensor bias = {};  ///< (out), or undefined

  Tensor operator()(const Tensor& x) const;
  /// Appends prefix + "weight" and, if there is one, prefix + "bias".
  void name_parameters(const std::string& prefix, ParameterList& list) const;
};

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

/// Each row of x (..., F) to a mean square of 1, then scaled (Zhang and Sennrich, 2019).
struct RMSNorm {
  Tensor weight;  ///< (F)
  double epsilon = 1e-5;

  Tensor operator()(const Tensor& x) const;
  void name_parameters(const std::string& prefix, ParameterList& list) const;
};

/// Dropout of probability p (ops/dropout.h) where numbers are given; else x.
Tensor drop(const Tensor& x, double p, Generator* numbers);

/// The columns of x (B, T, ...) from those of the `first`-th head on, as n_head heads of
/// `width` columns: (B, n_head, T, width), a view.
Tensor split_heads(const Tensor& x, int64_t n_head, int64_t width, int64_t first = 0);
/// Heads (B, H, T, D) side by side: (B, T, H · D), a view where they stand so, as attention's results do.
Tensor join_heads(const Tensor& x);

}  // namespace tapehead
