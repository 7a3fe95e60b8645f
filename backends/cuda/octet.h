// A row, eight elements at a time: by accesses of 16 bytes
// where its address allows them, one by one at its ends.
//
// Device code. Whatever a row is stored as, a thread holds it as W, the arithmetic's type.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tapehead/backends/cuda/launch.h"
#include "tapehead/core/tensor.h"

namespace tapehead {

/// What N elements of T are loaded in: as many as 16 bytes hold.
template <class T, int N>
using Access = Pack<T, (N < kPack<T> ? N : kPack<T>)>;

template <class P>
__device__ inline bool is_aligned_for(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % alignof(P) == 0;
}

/// x = elements [0, N) at p, which is aligned for Access<T, N>.
template <int N, class T, class W>
__device__ inline void load_aligned(const T* p, W (&x)[N]) {
  constexpr int n = sizeof(Access<T, N>) / sizeof(T);
#pragma unroll
  for (int k = 0; k < N / n; ++k) {
    const auto access = reinterpret_cast<const Access<T, N>*>(p)[k];
#pragma unroll
    for (int i = 0; i < n; ++i) x[k * n + i] = static_cast<W>(widen(access.element[i]));
  }
}

template <int N, class T, class W>
__device__ inline void store_aligned(T* p, const W (&x)[N]) {
  constexpr int n = sizeof(Access<T, N>) / sizeof(T);
#pragma unroll
  for (int k = 0; k < N / n; ++k) {
    Access<T, N> access;
#pragma unroll
    for (int i = 0; i < n; ++i) access.element[i] = narrow<T>(x[k * n + i]);
    reinterpret_cast<Access<T, N>*>(p)[k] = access;
  }
}

/// x = elements [begin, begin + N) of the n at `row`; `outside` where there is none.
template <int N, class T, class W>
__device__ inline void load_within(const T* row, int64_t begin, int64_t n, W outside, W (&x)[N]) {
  if (begin >= 0 && begin + N <= n && is_aligned_for<Access<T, N>>(row + begin)) {
    load_aligned<N>(row + begin, x);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i)
      x[i] = begin + i >= 0 && begin + i < n ? static_cast<W>(widen(row[begin + i])) : outside;
  }
}

/// Those elements = x, rounded; what is outside is dropped.
template <int N, class T, class W>
__device__ inline void store_within(T* row, int64_t begin, int64_t n, const W (&x)[N]) {
  if (begin >= 0 && begin + N <= n && is_aligned_for<Access<T, N>>(row + begin)) {
    store_aligned<N>(row + begin, x);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (begin + i >= 0 && begin + i < n) row[begin + i] = narrow<T>(x[i]);
    }
  }
}

constexpr int kOctet = 8;

/// How the n elements at `row` divide into octets: octet o holds elements [begin(o), begin(o) + 8), which
/// stand at a multiple of 8 elements in memory. The first and the last may lie partly outside of the row.
struct Octets {
  int64_t n;
  int shift;

  template <class T>
  __device__ Octets(const T* row, int64_t length)
      : n(length), shift(static_cast<int>(reinterpret_cast<uintptr_t>(row) / sizeof(T) % kOctet)) {}

  __device__ int64_t count() const { return (n + shift + kOctet - 1) / kOctet; }
  __device__ int64_t begin(int64_t octet) const { return octet * kOctet - shift; }

  template <class T, class W>
  __device__ void load(const T* row, int64_t octet, W outside, W (&x)[kOctet]) const {
    load_within<kOctet>(row, begin(octet), n, outside, x);
  }
  template <class T, class W>
  __device__ void store(T* row, int64_t octet, const W (&x)[kOctet]) const {
    store_within<kOctet>(row, begin(octet), n, x);
  }
};

/// Threads for a row of n elements, shared by a block: whole warps, and no more than there are octets.
inline unsigned row_threads(int64_t n, unsigned most = 256) {
  const int64_t warps = (n / kOctet + 2 + kWarp - 1) / kWarp;
  return static_cast<unsigned>(std::min<int64_t>(warps * kWarp, most));
}

/// Rows of floating elements of any dtype, as a kernel's parameter; null where the tensor is undefined.
struct Rows {
  const void* data = nullptr;
  DType dtype = DType::f32;
  int64_t stride = 0;  ///< from row to row, in elements

  Rows() = default;
  /// Of a matrix, or of a vector as one row.
  explicit Rows(const Tensor& x) {
    if (!x.defined()) return;
    data = x.raw_data();
    dtype = x.dtype();
    stride = x.dim() == 2 ? x.strides()[0] : 0;
  }
  __host__ __device__ explicit operator bool() const { return data != nullptr; }

  /// Calls f with a pointer to the elements of a row.
  template <class F>
  __device__ void visit(int64_t row, F&& f) const {
    switch (dtype) {
      case DType::f64: return f(static_cast<const double*>(data) + row * stride);
      case DType::f32: return f(static_cast<const float*>(data) + row * stride);
      case DType::f16: return f(static_cast<const f16*>(data) + row * stride);
      case DType::bf16: return f(static_cast<const bf16*>(data) + row * stride);
      default: return;
    }
  }

  /// x = an octet of a row, 0 outside.
  template <class W>
  __device__ void load(int64_t row, const Octets& octets, int64_t octet, W (&x)[kOctet]) const {
    visit(row, [&](const auto* p) { octets.load(p, octet, W{0}, x); });
  }
  template <class W>
  __device__ W at(int64_t row, int64_t column) const {
    W value = 0;
    visit(row, [&](const auto* p) { value = static_cast<W>(widen(p[column])); });
    return value;
  }
};

/// The same to be written.
struct MutableRows : Rows {
  MutableRows() = default;
  explicit MutableRows(Tensor x) : Rows(x) {
    if (x.defined()) x.bump_version();
  }

  template <class W>
  __device__ void store(int64_t row, const Octets& octets, int64_t octet, const W (&x)[kOctet]) const {
    visit(row, [&]<class T>(const T* p) { octets.store(const_cast<T*>(p), octet, x); });
  }
};

}  // namespace tapehead
