// Elementwise arithmetic, activations and dropout.
#include <cmath>

#include "tapehead/backends/activations.h"
#include "tapehead/backends/cuda/cuda_backend.h"
#include "tapehead/backends/cuda/strided.h"
#include "tapehead/backends/dropout_rule.h"
#include "tapehead/core/random.h"

namespace tapehead {

// ---- Loops

// y_i = f(x_i, ...): by packs where everything is dense and
// aligned, else element by element. Operand 0 of `index` is y.
template <class T, class F, class... X>
static __device__ void map_elements(const StridedIndex<1 + sizeof...(X)>& index, bool packed, T* y, F f,
                                    const X*... x) {
  int64_t first = 0;  // that packs leave
  if (packed) {
    const int64_t packs = index.count / kPack<T>;
    for_each_index(packs, [&](int64_t p) {
      const auto map = [&](auto... in) {
        Pack<T, kPack<T>> out;
        for (int e = 0; e < kPack<T>; ++e) out.element[e] = f(in.element[e]...);
        store_pack(y + p * kPack<T>, out);
      };
      map(load_pack(x + p * kPack<T>)...);
    });
    first = packs * kPack<T>;
  }
  for_each_index(index.count - first, [&](int64_t i) {
    const auto at = index(first + i);
    int k = 0;
    const T values[] = {x[at[++k]]...};
    if constexpr (sizeof...(X) == 1) {
      y[at[0]] = f(values[0]);
    } else {
      y[at[0]] = f(values[0], values[1]);
    }
  });
}

// Whether all operands are dense runs that begin at 16 bytes.
template <int K>
static bool can_pack(const StridedIndex<K>& index, std::initializer_list<const void*> operands) {
  for (int k = 0; k < K; ++k) {
    if (!index.is_dense(k)) return false;
  }
  return std::all_of(operands.begin(), operands.end(), is_pack_aligned);
}

template <class T>
static Grid grid_of(const Stream& stream, int64_t count, bool packed) {
  return grid_for(stream, packed ? (count + kPack<T> - 1) / kPack<T> : count);
}

// ---- Activations: formulas as in backends/cpu/elementwise.cc.

static __device__ float normal_cdf(float x) { return normcdff(x); }
static __device__ double normal_cdf(double x) { return normcdf(x); }

template <class W>
static __device__ W clamp(W x, double low, double high) {
  const W lo = static_cast<W>(low), hi = static_cast<W>(high);
  return x < lo ? lo : x > hi ? hi : x;
}

// σ(x), exact in both tails, and σ'(x) in `slope`.
template <class W>
static __device__ W sigmoid(W x, W& slope) {
  const W e = exp(-fabs(x)), large = 1 / (1 + e), small = e * large;
  slope = large * small;
  return x < 0 ? small : large;
}

// d / dx of x · σ(u) where u' = inner.
template <class W>
static __device__ W gate_derivative(W x, W u, W inner) {
  W slope;
  const W gate = sigmoid(u, slope);
  return gate + x * inner * slope;
}

template <Unary op, class W>
static __device__ W apply(W x) {
  [[maybe_unused]] W unused;
  if constexpr (op == Unary::neg) return -x;
  if constexpr (op == Unary::exp) return exp(x);
  if constexpr (op == Unary::log) return log(x);
  if constexpr (op == Unary::tanh) return tanh(x);
  if constexpr (op == Unary::sqrt) return sqrt(x);
  if constexpr (op == Unary::relu) return x < 0 ? W{0} : x;  // keeps NaN
  if constexpr (op == Unary::gelu) return x * normal_cdf(x);
  if constexpr (op == Unary::gelu_tanh)
    return x * sigmoid(x * static_cast<W>(kGeluScale) * (x * x * static_cast<W>(kGeluCubic) + 1), unused);
  if constexpr (op == Unary::silu) return x * sigmoid(x, unused);
}

// From y where derivative_uses_result(op), else from x.
template <Unary op, class W>
static __device__ W derivative(W s) {
  if constexpr (op == Unary::neg) return -1;
  if constexpr (op == Unary::exp) return s;
  if constexpr (op == Unary::log) return 1 / s;
  if constexpr (op == Unary::tanh) return 1 - s * s;
  if constexpr (op == Unary::sqrt) return static_cast<W>(0.5) / s;
  if constexpr (op == Unary::relu) return s > 0 ? 1 : 0;
  if constexpr (op == Unary::gelu) {
    const W x = clamp(s, -kGeluBound, kGeluBound);
    return normal_cdf(x) + x * static_cast<W>(kNormalDensity) * exp(x * x * static_cast<W>(-0.5));
  }
  if constexpr (op == Unary::gelu_tanh) {
    const W x = clamp(s, -kGeluTanhBound, kGeluTanhBound), square = x * x, scale = static_cast<W>(kGeluScale);
    return gate_derivative(x, x * scale * (square * static_cast<W>(kGeluCubic) + 1),
                           scale * (square * static_cast<W>(3 * kGeluCubic) + 1));
  }
  if constexpr (op == Unary::silu) {
    const W x = clamp(s, -kSiluBound, kSiluBound);
    return gate_derivative(x, x, W{1});
  }
}

template <class T>
static __global__ void unary_kernel(Unary op, StridedIndex<2> index, bool packed, T* y, const T* x) {
  with_constant(op, [&](auto constant) {
    map_elements(
        index, packed, y, [](T v) { return narrow<T>(apply<decltype(constant)::value>(widen(v))); }, x);
  });
}

template <class T>
static __global__ void unary_backward_kernel(Unary op, StridedIndex<3> index, bool packed, T* gx,
                                             const T* saved, const T* gy) {
  with_constant(op, [&](auto constant) {
    map_elements(
        index, packed, gx,
        [](T s, T g) { return narrow<T>(widen(g) * derivative<decltype(constant)::value>(widen(s))); }, saved,
        gy);
  });
}

void CudaBackend::unary(Unary op, const Tensor& x, Tensor& y) {
  const StridedIndex<2> index(y.shape(), {y.strides(), x.strides()});
  visit_floating(y.dtype(), "unary", [&]<class T>(std::type_identity<T>) {
    T* to = y.mutable_data<T>();
    const T* from = x.data<T>();
    const bool packed = can_pack(index, {to, from});
    stream_.launch("unary", grid_of<T>(stream_, index.count, packed), unary_kernel<T>, op, index, packed, to,
                   from);
  });
}

void CudaBackend::unary_backward(Unary op, const Tensor& saved, const Tensor& gy, Tensor& gx) {
  const StridedIndex<3> index(gx.shape(), {gx.strides(), saved.strides(), gy.strides()});
  visit_floating(gx.dtype(), "unary_backward", [&]<class T>(std::type_identity<T>) {
    T* to = gx.mutable_data<T>();
    const T *from = saved.data<T>(), *up = gy.data<T>();
    const bool packed = can_pack(index, {to, from, up});
    stream_.launch("unary_backward", grid_of<T>(stream_, index.count, packed), unary_backward_kernel<T>, op,
                   index, packed, to, from, up);
  });
}

// ---- Two operands, and a factor

template <class T>
static __global__ void binary_kernel(Binary op, StridedIndex<3> index, bool packed, T* y, const T* a,
                                     const T* b) {
  const auto run = [&](auto f) {
    map_elements(
        index, packed, y, [=](T u, T v) { return narrow<T>(f(widen(u), widen(v))); }, a, b);
  };
  switch (op) {
    case Binary::add: return run([](auto u, auto v) { return u + v; });
    case Binary::sub: return run([](auto u, auto v) { return u - v; });
    case Binary::mul: return run([](auto u, auto v) { return u * v; });
    case Binary::div: return run([](auto u, auto v) { return u / v; });
  }
}

void CudaBackend::binary(Binary op, const Tensor& a, const Tensor& b, Tensor& y) {
  const StridedIndex<3> index(y.shape(), {y.strides(), broadcast_strides(a.shape(), a.strides(), y.shape()),
                                          broadcast_strides(b.shape(), b.strides(), y.shape())});
  visit_floating(y.dtype(), "binary", [&]<class T>(std::type_identity<T>) {
    T* to = y.mutable_data<T>();
    const T *u = a.data<T>(), *v = b.data<T>();
    const bool packed = can_pack(index, {to, u, v});
    stream_.launch("binary", grid_of<T>(stream_, index.count, packed), binary_kernel<T>, op, index, packed,
                   to, u, v);
  });
}

template <class F, class T>
static __global__ void scale_kernel(const F* factor, int64_t n, T* y) {
  const auto f = static_cast<wide_t<T>>(widen(*factor));
  if (f == 1) return;
  for_each_index(n, [&](int64_t i) { y[i] = narrow<T>(f == 0 ? f : widen(y[i]) * f); });
}

void CudaBackend::scale(const Tensor& factor, Tensor& y) {
  visit_floating(factor.dtype(), "scale", [&]<class F>(std::type_identity<F>) {
    visit_floating(y.dtype(), "scale", [&]<class T>(std::type_identity<T>) {
      stream_.launch("scale", grid_for(stream_, y.numel()), scale_kernel<F, T>, factor.data<F>(), y.numel(),
                     y.mutable_data<T>());
    });
  });
}

// ---- Dropout

// A thread does the four elements of a block of random words.
template <class T>
static __global__ void dropout_kernel(StridedIndex<1> index, const T* x, DropoutRule<wide_t<T>> rule,
                                      RandomStart start, T* y) {
  const uint64_t first = start.block();
  for_each_index((index.count + 3) / 4, [&](int64_t block) {
    const std::array<uint32_t, 4> words = philox(start.seed, first + static_cast<uint64_t>(block));
    for (int k = 0; k < 4; ++k) {
      const int64_t i = 4 * block + k;
      if (i >= index.count) return;
      const auto value = widen(x[index(i)[0]]);
      y[i] = narrow<T>(rule.keeps(words[static_cast<size_t>(k)]) ? value * rule.scale : 0);
    }
  });
}

void CudaBackend::dropout(const Tensor& x, double p, uint64_t seed, uint64_t first, Tensor& y) {
  const StridedIndex<1> index(x.shape(), {x.strides()});
  visit_floating(y.dtype(), "dropout", [&]<class T>(std::type_identity<T>) {
    stream_.launch("dropout", grid_for(stream_, (index.count + 3) / 4), dropout_kernel<T>, index, x.data<T>(),
                   DropoutRule<wide_t<T>>(p), random_start(seed, first), y.mutable_data<T>());
  });
}

}  // namespace tapehead
