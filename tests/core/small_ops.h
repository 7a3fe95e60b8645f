// Three small ops of our own, so that the tape's tests stand on nothing but the tape.
#pragma once

#include <vector>

#include "tapehead/core/tape.h"

namespace tapehead {

inline Tensor vector(const std::vector<double>& values) {
  return Tensor::from<double>({static_cast<int64_t>(values.size())}, values);
}

inline Tensor leaf(const std::vector<double>& values) { return vector(values).set_requires_grad(); }

inline Tensor multiply(const Tensor& a, const Tensor& b, double factor = 1) {
  std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  for (size_t i = 0; i < x.size(); ++i) x[i] *= y[i] * factor;
  return Tensor::from<double>(a.shape(), x);
}

// The sum of equally shaped tensors: hands its gradient on, as it is, to all.
inline Tensor add(const std::vector<Tensor>& inputs) {
  std::vector<double> sum(static_cast<size_t>(inputs[0].numel()));
  for (const Tensor& x : inputs) {
    const double* values = x.data<double>();
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return record("add", Tensor::from<double>(inputs[0].shape(), sum), inputs, {},
                [n = inputs.size()](const Upstream& up) { return Gradients(n, up.grad); });
}

// x²: reads its input again.
inline Tensor square(const Tensor& x) {
  return record("square", multiply(x, x), {x}, {x},
                [](const Upstream& up) -> Gradients { return {multiply(up.grad, up.saved(0), 2)}; });
}

// An op whose backward gives whatever the test says.
inline Tensor answer(const Tensor& x, BackwardFunction backward) {
  return record("answer", x.clone(), {x}, {}, std::move(backward));
}

inline std::vector<double> grad(const Tensor& x) { return x.grad().to_vector<double>(); }

}  // namespace tapehead
