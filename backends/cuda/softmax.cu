// Softmax, its logarithm, and their gradients: a block a row. A row is read again where it is needed again;
// unless it is very long, that comes from the cache.
#include <cmath>

#include "tapehead/backends/cuda/cuda_backend.h"
#include "tapehead/backends/cuda/launch.h"
#include "tapehead/backends/cuda/octet.h"

namespace tapehead {
namespace {

/// Σ f(octet) of a row over the block: in W inside an octet, in f64 across.
template <class F>
__device__ double sum_octets(const Octets& octets, F&& f) {
  double sum = 0;
  for (int64_t o = threadIdx.x; o < octets.count(); o += blockDim.x) sum += static_cast<double>(f(o));
  return block_sum(sum);
}

template <class T>
__global__ void softmax_kernel(const T* x, int64_t R, int64_t C, bool log, T* y) {
  using W = wide_t<T>;
  constexpr W kLowest = -std::numeric_limits<W>::infinity();
  for_each_row(R, [&](int64_t r) {
    const T* in = x + r * C;
    const Octets octets(in, C);
    W v[kOctet];
    W largest = kLowest;
    for (int64_t o = threadIdx.x; o < octets.count(); o += blockDim.x) {
      octets.load(in, o, kLowest, v);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) largest = Larger()(largest, v[i]);
    }
    largest = block_max(largest);
    const double sum = sum_octets(octets, [&](int64_t o) {
      octets.load(in, o, kLowest, v);
      W part = 0;
#pragma unroll
      for (int i = 0; i < kOctet; ++i) part += std::exp(v[i] - largest);
      return part;
    });
    const W log_sum = log ? static_cast<W>(std::log(sum)) : W{0}, scale = static_cast<W>(1 / sum);
    for (int64_t o = threadIdx.x; o < octets.count(); o += blockDim.x) {
      octets.load(in, o, kLowest, v);
#pragma unroll
      for (int i = 0; i < kOctet; ++i)
        v[i] = log ? v[i] - largest - log_sum : std::exp(v[i] - largest) * scale;
      octets.store(y + r * C, o, v);
    }
  });
}

// softmax: gx = y · (gy - Σ gy · y); log_softmax: gx = gy - exp(y) · Σ gy.
template <class T>
__global__ void softmax_backward_kernel(const T* y, const T* gy, int64_t R, int64_t C, bool log, T* gx) {
  using W = wide_t<T>;
  for_each_row(R, [&](int64_t r) {
    const T *result = y + r * C, *up = gy + r * C;
    const Octets octets(result, C);
    W v[kOctet], g[kOctet];
    const W sum = static_cast<W>(sum_octets(octets, [&](int64_t o) {
      octets.load(up, o, W{0}, g);
      if (!log) octets.load(result, o, W{0}, v);
      W part = 0;
#pragma unroll
      for (int i = 0; i < kOctet; ++i) part += log ? g[i] : g[i] * v[i];
      return part;
    }));
    for (int64_t o = threadIdx.x; o < octets.count(); o += blockDim.x) {
      octets.load(result, o, W{0}, v);
      octets.load(up, o, W{0}, g);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) g[i] = log ? g[i] - std::exp(v[i]) * sum : v[i] * (g[i] - sum);
      octets.store(gx + r * C, o, g);
    }
  });
}

}  // namespace

void CudaBackend::softmax(const Tensor& x, bool log, Tensor& y) {
  if (x.numel() == 0) return;
  const int64_t R = x.size(0), C = x.size(1);
  visit_floating(x.dtype(), "softmax", [&]<class T>(std::type_identity<T>) {
    stream_.launch("softmax", grid_of_rows(R, row_threads(C)), softmax_kernel<T>, x.data<T>(), R, C, log,
                   y.mutable_data<T>());
  });
}

void CudaBackend::softmax_backward(const Tensor& y, const Tensor& gy, bool log, Tensor& gx) {
  if (y.numel() == 0) return;
  const int64_t R = y.size(0), C = y.size(1);
  visit_floating(y.dtype(), "softmax_backward", [&]<class T>(std::type_identity<T>) {
    stream_.launch("softmax_backward", grid_of_rows(R, row_threads(C)), softmax_backward_kernel<T>,
                   y.data<T>(), gy.data<T>(), R, C, log, gx.mutable_data<T>());
  });
}

}  // namespace tapehead
