// Elementwise arithmetic, activations and dropout.

// The order matters (simd.h).
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/elementwise.cc"
#include "tapehead/backends/cpu/simd.h"
#include <hwy/foreach_target.h>
#include "tapehead/backends/cpu/simd_math-inl.h"
#include "tapehead/backends/cpu/simd_random-inl.h"
// clang-format on

#include <cmath>

#include "tapehead/backends/activations.h"
#include "tapehead/backends/cpu/convert.h"
#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/backends/cpu/nd_loop.h"
#include "tapehead/backends/dropout_rule.h"

// ---- Activations on dense float or double, for each instruction set

HWY_BEFORE_NAMESPACE();
namespace tapehead::HWY_NAMESPACE {

// d / dx of x · σ(u) where u' = inner.
template <class D, class V = hn::Vec<D>>
V GateDerivative(D d, V x, V u, V inner) {
  V slope;
  const V gate = Sigmoid(d, u, slope);
  return hn::MulAdd(hn::Mul(x, inner), slope, gate);
}

template <Unary op, class D, class V = hn::Vec<D>>
V Apply(D d, V x) {
  using T = hn::TFromD<D>;
  V unused;
  if constexpr (op == Unary::neg) return hn::Neg(x);
  if constexpr (op == Unary::exp) return Exp(d, x);
  if constexpr (op == Unary::log) return Log(d, x);
  if constexpr (op == Unary::tanh) return Tanh(d, x);
  if constexpr (op == Unary::sqrt) return hn::Sqrt(x);
  if constexpr (op == Unary::relu)
    return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);  // keeps NaN
  if constexpr (op == Unary::gelu) return hn::Mul(x, NormalCdf(d, x, unused));
  if constexpr (op == Unary::gelu_tanh) {
    const V cubic = hn::MulAdd(hn::Mul(x, x), hn::Set(d, static_cast<T>(kGeluCubic)), hn::Set(d, T{1}));
    return hn::Mul(x, Sigmoid(d, hn::Mul(hn::Mul(x, hn::Set(d, static_cast<T>(kGeluScale))), cubic), unused));
  }
  if constexpr (op == Unary::silu) return hn::Mul(x, Sigmoid(d, x, unused));
}

// From y where derivative_uses_result(op), else from x.
template <Unary op, class D, class V = hn::Vec<D>>
V Derivative(D d, V s) {
  using T = hn::TFromD<D>;
  const V one = hn::Set(d, T{1});
  if constexpr (op == Unary::neg) return hn::Set(d, T{-1});
  if constexpr (op == Unary::exp) return s;
  if constexpr (op == Unary::log) return hn::Div(one, s);
  if constexpr (op == Unary::tanh) return hn::NegMulAdd(s, s, one);
  if constexpr (op == Unary::sqrt) return hn::Div(hn::Set(d, T{0.5}), s);
  if constexpr (op == Unary::relu) return hn::IfThenElseZero(hn::Gt(s, hn::Zero(d)), one);
  if constexpr (op == Unary::gelu) {
    V density;
    const V x = Clamp(d, s, -kGeluBound, kGeluBound);
    const V cdf = NormalCdf(d, x, density);
    return hn::MulAdd(x, density, cdf);
  }
  if constexpr (op == Unary::gelu_tanh) {
    const V x = Clamp(d, s, -kGeluTanhBound, kGeluTanhBound), square = hn::Mul(x, x);
    const V scale = hn::Set(d, static_cast<T>(kGeluScale));
    const V u = hn::Mul(hn::Mul(x, scale), hn::MulAdd(square, hn::Set(d, static_cast<T>(kGeluCubic)), one));
    const V inner = hn::Mul(scale, hn::MulAdd(square, hn::Set(d, static_cast<T>(3 * kGeluCubic)), one));
    return GateDerivative(d, x, u, inner);
  }
  if constexpr (op == Unary::silu) {
    const V x = Clamp(d, s, -kSiluBound, kSiluBound);
    return GateDerivative(d, x, x, one);
  }
}

// y = op(x), or with gy: y = gy · op'(x).
template <Unary op, class T>
void MapUnary(int64_t n, T* y, const T* x, const T* gy) {
  const hn::ScalableTag<T> d;
  if (gy) {
    Map(
        d, n, y, [&](auto s, auto g) HWY_ATTR { return hn::Mul(g, Derivative<op>(d, s)); }, x, gy);
  } else {
    Map(
        d, n, y, [&](auto v) HWY_ATTR { return Apply<op>(d, v); }, x);
  }
}

template <class T>
void MapUnary(Unary op, int64_t n, T* y, const T* x, const T* gy) {
  with_constant(op, [&](auto constant) { MapUnary<constant.value>(n, y, x, gy); });
}

void UnaryF32(Unary op, int64_t n, float* y, const float* x, const float* gy) { MapUnary(op, n, y, x, gy); }
void UnaryF64(Unary op, int64_t n, double* y, const double* x, const double* gy) {
  MapUnary(op, n, y, x, gy);
}

// ---- Dropout

// x_0 has the first word of block `first`.
template <class T>
void Drop(const DropoutRule<T>& rule, uint64_t seed, uint64_t first, int64_t n, const T* x, T* y) {
  constexpr int64_t kWords = 512;
  HWY_ALIGN uint32_t words[kWords];
  for (int64_t begin = 0; begin < n; begin += kWords) {
    const int64_t count = std::min(kWords, n - begin);
    RandomWords(seed, first + static_cast<uint64_t>(begin / 4), (count + 3) / 4, words);
    for (int64_t i = 0; i < count; ++i)
      y[begin + i] = rule.keeps(words[i]) ? x[begin + i] * rule.scale : T{0};
  }
}

void DropF32(const DropoutRule<float>& rule, uint64_t seed, uint64_t first, int64_t n, const float* x,
             float* y) {
  Drop(rule, seed, first, n, x, y);
}
void DropF64(const DropoutRule<double>& rule, uint64_t seed, uint64_t first, int64_t n, const double* x,
             double* y) {
  Drop(rule, seed, first, n, x, y);
}

}  // namespace tapehead::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

// ---- Any dtype and strides

#if HWY_ONCE
namespace tapehead {

HWY_EXPORT(UnaryF32);
HWY_EXPORT(UnaryF64);
HWY_EXPORT(DropF32);
HWY_EXPORT(DropF64);

static void map_unary(Unary op, int64_t n, float* y, const float* x, const float* gy) {
  HWY_DYNAMIC_DISPATCH(UnaryF32)(op, n, y, x, gy);
}

static void map_unary(Unary op, int64_t n, double* y, const double* x, const double* gy) {
  HWY_DYNAMIC_DISPATCH(UnaryF64)(op, n, y, x, gy);
}

// Dense elements in the arithmetic's type: those at p themselves if so already, else copied to `block`.
template <class T>
static const wide_t<T>* gather(const T* p, int64_t step, int64_t n, wide_t<T>* block) {
  if constexpr (std::is_same_v<T, wide_t<T>>) {
    if (step == 1) return p;
  }
  for (int64_t i = 0; i < n; ++i) block[i] = static_cast<wide_t<T>>(p[i * step]);
  return block;
}

// y = op(x), or where gy is defined: y = gy · op'(x).
static void run_unary(Unary op, const Tensor& x, const Tensor& gy, Tensor& y) {
  constexpr int64_t kBlock = 512;
  const NdLoop<3> loop(y.shape(), {y.strides(), x.strides(), gy.defined() ? gy.strides() : x.strides()});
  const auto [sy, sx, sg] = loop.steps();
  visit_floating(y.dtype(), "unary", [&, sy = sy, sx = sx, sg = sg]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    const T* px = x.data<T>();
    const T* pg = gy.defined() ? gy.data<T>() : nullptr;
    T* py = y.mutable_data<T>();
    loop.run([&](const auto& at, int64_t count) {
      W blocks[3][kBlock];
      for (int64_t begin = 0; begin < count; begin += kBlock) {
        const int64_t n = std::min(kBlock, count - begin);
        const W* from = gather(px + at[1] + begin * sx, sx, n, blocks[1]);
        const W* up = pg ? gather(pg + at[2] + begin * sg, sg, n, blocks[2]) : nullptr;
        T* to = py + at[0] + begin * sy;
        if constexpr (std::is_same_v<T, W>) {
          if (sy == 1) {
            map_unary(op, n, to, from, up);
            continue;
          }
        }
        map_unary(op, n, blocks[0], from, up);
        for (int64_t i = 0; i < n; ++i) to[i * sy] = static_cast<T>(blocks[0][i]);
      }
    });
  });
}

void CpuBackend::unary(Unary op, const Tensor& x, Tensor& y) { run_unary(op, x, {}, y); }

void CpuBackend::unary_backward(Unary op, const Tensor& saved, const Tensor& gy, Tensor& gx) {
  run_unary(op, saved, gy, gx);
}

// y = f(a, b), with plain loops that the compiler vectorises for the layouts that matter.
template <class F>
static void run_binary(const Tensor& a, const Tensor& b, Tensor& y, F f) {
  const NdLoop<3> loop(y.shape(), {y.strides(), broadcast_strides(a.shape(), a.strides(), y.shape()),
                                   broadcast_strides(b.shape(), b.strides(), y.shape())});
  const auto [sy, sa, sb] = loop.steps();
  visit_floating(y.dtype(), "binary", [&, sy = sy, sa = sa, sb = sb]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    const T* pa = a.data<T>();
    const T* pb = b.data<T>();
    T* py = y.mutable_data<T>();
    const auto op = [f](T u, T v) { return static_cast<T>(f(static_cast<W>(u), static_cast<W>(v))); };
    loop.run([&](const auto& at, int64_t n) {
      T* to = py + at[0];
      const T* u = pa + at[1];
      const T* v = pb + at[2];
      if (sy == 1 && sa == 1 && sb == 1) {
        for (int64_t i = 0; i < n; ++i) to[i] = op(u[i], v[i]);
      } else if (sy == 1 && sa == 1 && sb == 0) {
        const T number = *v;
        for (int64_t i = 0; i < n; ++i) to[i] = op(u[i], number);
      } else {
        for (int64_t i = 0; i < n; ++i) to[i * sy] = op(u[i * sa], v[i * sb]);
      }
    });
  });
}

void CpuBackend::binary(Binary op, const Tensor& a, const Tensor& b, Tensor& y) {
  switch (op) {
    case Binary::add: return run_binary(a, b, y, [](auto u, auto v) { return u + v; });
    case Binary::sub: return run_binary(a, b, y, [](auto u, auto v) { return u - v; });
    case Binary::mul: return run_binary(a, b, y, [](auto u, auto v) { return u * v; });
    case Binary::div: return run_binary(a, b, y, [](auto u, auto v) { return u / v; });
  }
}

void CpuBackend::scale(const Tensor& factor, Tensor& y) {
  const double f = visit_floating(factor.dtype(), "scale", [&]<class T>(std::type_identity<T>) {
    return static_cast<double>(static_cast<wide_t<T>>(*factor.data<T>()));
  });
  if (f == 1) return;
  if (f == 0) return fill(y, 0);
  visit_floating(y.dtype(), "scale", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    T* out = y.mutable_data<T>();
    parallel_for(y.numel(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        out[i] = static_cast<T>(static_cast<W>(out[i]) * static_cast<W>(f));
    });
  });
}

void CpuBackend::dropout(const Tensor& x, double p, uint64_t seed, uint64_t first, Tensor& y) {
  constexpr int64_t kBlock = 1024;  // a multiple of 4: a block of random words is not divided
  const Tensor dense = x.contiguous();
  const DType dtype = y.dtype(), wide = arithmetic_dtype(dtype);
  const auto* in = static_cast<const char*>(dense.raw_data());
  auto* out = static_cast<char*>(y.mutable_raw_data());
  const int64_t n = y.numel(), size = size_of(dtype);
  visit_floating(wide, "dropout", [&]<class W>(std::type_identity<W>) {
    const DropoutRule<W> rule(p);
    parallel_for((n + kBlock - 1) / kBlock, kGrain / kBlock, [&](int64_t begin, int64_t end) {
      W from[kBlock], to[kBlock];
      for (int64_t block = begin; block < end; ++block) {
        const int64_t i = block * kBlock, count = std::min(kBlock, n - i);
        convert_run(dtype, in + i * size, wide, from, count);
        const uint64_t number = first + static_cast<uint64_t>(i / 4);
        if constexpr (std::is_same_v<W, double>) {
          HWY_DYNAMIC_DISPATCH(DropF64)(rule, seed, number, count, from, to);
        } else if constexpr (std::is_same_v<W, float>) {
          HWY_DYNAMIC_DISPATCH(DropF32)(rule, seed, number, count, from, to);
        }
        convert_run(wide, to, dtype, out + i * size, count);
      }
    });
  });
}

}  // namespace tapehead
#endif  // HWY_ONCE
