// Elementwise arithmetic, activations and dropout.
#include <cmath>
#include <numbers>

#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/backends/cpu/nd_loop.h"

namespace tapehead {

// gelu_tanh's constants: sqrt(2/π), and that of the cubic term.
constexpr double kGeluScale = 0.79788456080286535588;
constexpr double kGeluCubic = 0.044715;

template <class W>
static W apply(Unary op, W x) {
  switch (op) {
    case Unary::neg:
      return -x;
    case Unary::exp:
      return std::exp(x);
    case Unary::log:
      return std::log(x);
    case Unary::tanh:
      return std::tanh(x);
    case Unary::sqrt:
      return std::sqrt(x);
    case Unary::relu:
      return x < 0 ? 0 : x;  // keeps NaN
    case Unary::gelu:
      return x / 2 * (1 + std::erf(x * std::numbers::sqrt2_v<W> / 2));
    case Unary::gelu_tanh:
      return x / 2 * (1 + std::tanh(W(kGeluScale) * (x + W(kGeluCubic) * x * x * x)));
    case Unary::silu:
      return x / (1 + std::exp(-x));
  }
  return x;
}

// The derivative, from y where derivative_uses_result(op), else from x.
template <class W>
static W derivative(Unary op, W s) {
  switch (op) {
    case Unary::neg:
      return -1;
    case Unary::exp:
      return s;
    case Unary::log:
      return 1 / s;
    case Unary::tanh:
      return 1 - s * s;
    case Unary::sqrt:
      return 1 / (2 * s);
    case Unary::relu:
      return s > 0 ? 1 : 0;
    case Unary::gelu: {
      const W density = std::exp(-s * s / 2) * (std::numbers::sqrt2_v<W> * std::numbers::inv_sqrtpi_v<W> / 2);
      return (1 + std::erf(s * std::numbers::sqrt2_v<W> / 2)) / 2 + s * density;
    }
    case Unary::gelu_tanh: {
      const W t = std::tanh(W(kGeluScale) * (s + W(kGeluCubic) * s * s * s));
      return (1 + t) / 2 + s / 2 * (1 - t * t) * W(kGeluScale) * (1 + 3 * W(kGeluCubic) * s * s);
    }
    case Unary::silu: {
      const W sigmoid = 1 / (1 + std::exp(-s));
      return sigmoid * (1 + s * (1 - sigmoid));
    }
  }
  return s;
}

void CpuBackend::unary(Unary op, const Tensor& x, Tensor& y) {
  const NdLoop<2> loop(y.shape(), {y.strides(), x.strides()});
  const auto [sy, sx] = loop.steps();
  visit_floating(y.dtype(), "unary", [&, sy = sy, sx = sx]<class T>(std::type_identity<T>) {
    const T* px = x.data<T>();
    T* py = y.mutable_data<T>();
    loop.run([&](const auto& at, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        py[at[0] + i * sy] = static_cast<T>(apply(op, static_cast<wide_t<T>>(px[at[1] + i * sx])));
      }
    });
  });
}

void CpuBackend::unary_backward(Unary op, const Tensor& saved, const Tensor& gy, Tensor& gx) {
  const NdLoop<3> loop(gx.shape(), {gx.strides(), saved.strides(), gy.strides()});
  const auto s = loop.steps();
  visit_floating(gx.dtype(), "unary_backward", [&]<class T>(std::type_identity<T>) {
    const T* ps = saved.data<T>();
    const T* pg = gy.data<T>();
    T* out = gx.mutable_data<T>();
    loop.run([&](const auto& at, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        const auto d = derivative(op, static_cast<wide_t<T>>(ps[at[1] + i * s[1]]));
        out[at[0] + i * s[0]] = static_cast<T>(static_cast<wide_t<T>>(pg[at[2] + i * s[2]]) * d);
      }
    });
  });
}

void CpuBackend::binary(Binary op, const Tensor& a, const Tensor& b, Tensor& y) {
  const NdLoop<3> loop(y.shape(), {y.strides(), broadcast_strides(a.shape(), a.strides(), y.shape()),
                                   broadcast_strides(b.shape(), b.strides(), y.shape())});
  const auto s = loop.steps();
  visit_floating(y.dtype(), "binary", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    const T* pa = a.data<T>();
    const T* pb = b.data<T>();
    T* py = y.mutable_data<T>();
    loop.run([&](const auto& at, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        const W u = static_cast<W>(pa[at[1] + i * s[1]]), v = static_cast<W>(pb[at[2] + i * s[2]]);
        const W r = op == Binary::add ? u + v : op == Binary::sub ? u - v : op == Binary::mul ? u * v : u / v;
        py[at[0] + i * s[0]] = static_cast<T>(r);
      }
    });
  });
}

void CpuBackend::dropout(const Tensor& x, double p, uint64_t seed, uint64_t first, Tensor& y) {
  const Tensor dense = x.contiguous();
  visit_floating(y.dtype(), "dropout", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    const T* in = dense.data<T>();
    T* out = y.mutable_data<T>();
    const W scale = static_cast<W>(1 / (1 - p));
    const int64_t n = y.numel();
    parallel_for((n + 3) / 4, kGrain / 4, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const auto words = philox(seed, first + static_cast<uint64_t>(block));
        for (int64_t i = block * 4; i < std::min(n, block * 4 + 4); ++i) {
          const bool keep = to_uniform(words[static_cast<size_t>(i % 4)]) >= p;
          out[i] = keep ? static_cast<T>(static_cast<W>(in[i]) * scale) : T(0.0f);
        }
      }
    });
  });
}

}  // namespace tapehead
