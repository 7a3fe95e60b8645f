// Elementwise operations. Floating dtypes; the result has the dtype of the inputs, which must agree. All
// throw TypeError on integers.
#pragma once

#include "tapehead/core/view.h"

namespace tapehead {

/// a + b, a - b, a · b, a / b, with NumPy's broadcasting. Throw ValueError on shapes that do not broadcast
/// and on different devices, TypeError on dtypes that differ.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }

/// With a number, of a's dtype.
inline Tensor operator+(const Tensor& a, double b) {
  return add(a, Tensor::scalar(b, a.dtype(), a.device()));
}
inline Tensor operator-(const Tensor& a, double b) {
  return sub(a, Tensor::scalar(b, a.dtype(), a.device()));
}
inline Tensor operator*(const Tensor& a, double b) {
  return mul(a, Tensor::scalar(b, a.dtype(), a.device()));
}
inline Tensor operator/(const Tensor& a, double b) {
  return div(a, Tensor::scalar(b, a.dtype(), a.device()));
}

Tensor neg(const Tensor& x);
Tensor exp(const Tensor& x);
/// Natural logarithm.
Tensor log(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sqrt(const Tensor& x);
/// max(x, 0); the derivative at 0 is 0, as in PyTorch.
Tensor relu(const Tensor& x);
/// x · Φ(x), Φ the normal distribution function (Hendrycks and Gimpel, 2016).
Tensor gelu(const Tensor& x);
/// Its tanh form, GPT-2's gelu_new and PyTorch's approximate="tanh":
/// x/2 · (1 + tanh(sqrt(2/π) · (x + 0.044715 x³))).
Tensor gelu_tanh(const Tensor& x);
/// x / (1 + exp(-x)).
Tensor silu(const Tensor& x);

}  // namespace tapehead
