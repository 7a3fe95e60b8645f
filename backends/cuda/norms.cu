// Layer norm and RMS norm, which differ in one thing: the first takes the
// mean off. A block a row; the gradients of the parameters are summed over
// slabs of rows first, then over slabs, so that every sum has one order.
#include <cmath>

#include "tapehead/backends/cuda/cuda_backend.h"
#include "tapehead/backends/cuda/launch.h"
#include "tapehead/backends/cuda/octet.h"
#include "tapehead/backends/cuda/scratch.h"

namespace tapehead {
namespace {

constexpr int kSlabRows = 256;          // rows whose part of the parameters' gradients one block sums
constexpr unsigned kSlabThreads = 256;  // 32 columns by 8 rows at a time
constexpr int kSlabLanes = kSlabThreads / kWarp;

/// A norm's tensors; undefined ones are null.
template <class T>
struct Norm {
  using W = wide_t<T>;
  int64_t R, C;
  const T *x, *weight, *bias;
  W *mean, *rstd;  // written by forward, read by backward
};

// With kCenter: y = (x - mean) · rstd · weight + bias; else the same with a mean of 0.
template <class T, bool kCenter>
__global__ void norm_kernel(Norm<T> norm, double epsilon, T* y) {
  using W = wide_t<T>;
  const int64_t C = norm.C;
  for_each_row(norm.R, [&](int64_t r) {
    const T* in = norm.x + r * C;
    const Octets octets(in, C);
    W v[kOctet];
    W mean = 0;
    if constexpr (kCenter) {
      double sum = 0;
      for (int64_t o = threadIdx.x; o < octets.count(); o += blockDim.x) {
        octets.load(in, o, W{0}, v);
        W part = 0;
#pragma unroll
        for (int i = 0; i < kOctet; ++i) part += v[i];
        sum += static_cast<double>(part);
      }
      mean = static_cast<W>(block_sum(sum) / static_cast<double>(C));
    }
    double squares = 0;
    for (int64_t o = threadIdx.x; o < octets.count(); o += blockDim.x) {
      octets.load(in, o, mean, v);
      W part = 0;
#pragma unroll
      for (int i = 0; i < kOctet; ++i) part += (v[i] - mean) * (v[i] - mean);
      squares += static_cast<double>(part);
    }
    const W rstd = static_cast<W>(1 / std::sqrt(block_sum(squares) / static_cast<double>(C) + epsilon));
    for (int64_t o = threadIdx.x; o < octets.count(); o += blockDim.x) {
      W factor[kOctet], shift[kOctet];
      octets.load(in, o, mean, v);
      if (norm.weight) octets.load(norm.weight, o, W{0}, factor);
      if (norm.bias) octets.load(norm.bias, o, W{0}, shift);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) {
        v[i] = (v[i] - mean) * rstd;
        if (norm.weight) v[i] *= factor[i];
        if (norm.bias) v[i] += shift[i];
      }
      octets.store(y + r * C, o, v);
    }
    if (threadIdx.x == 0) {
      if (norm.mean) norm.mean[r] = mean;
      if (norm.rstd) norm.rstd[r] = rstd;
    }
  });
}

// With x̂ = (x - mean) · rstd and g = gy · weight:
// gx = rstd · (g - mean(g) - x̂ · mean(g · x̂)), mean(g) only with kCenter.
template <class T, bool kCenter>
__global__ void norm_input_gradient_kernel(Norm<T> norm, const T* gy, T* gx) {
  using W = wide_t<T>;
  const int64_t C = norm.C;
  for_each_row(norm.R, [&](int64_t r) {
    const T *in = norm.x + r * C, *up = gy + r * C;
    const Octets octets(in, C);
    const W mean = kCenter ? norm.mean[r] : W{0}, rstd = norm.rstd[r];
    W x[kOctet], g[kOctet];
    const auto load = [&](int64_t o) {
      W factor[kOctet];
      octets.load(in, o, mean, x);
      octets.load(up, o, W{0}, g);
      if (norm.weight) octets.load(norm.weight, o, W{0}, factor);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) {
        x[i] = (x[i] - mean) * rstd;
        if (norm.weight) g[i] *= factor[i];
      }
    };
    double sum = 0, dot = 0;
    for (int64_t o = threadIdx.x; o < octets.count(); o += blockDim.x) {
      load(o);
      W s = 0, d = 0;
#pragma unroll
      for (int i = 0; i < kOctet; ++i) {
        s += g[i];
        d += g[i] * x[i];
      }
      sum += static_cast<double>(s);
      dot += static_cast<double>(d);
    }
    const double count = static_cast<double>(C);
    const W mean_g = kCenter ? static_cast<W>(block_sum(sum) / count) : W{0};
    const W mean_dot = static_cast<W>(block_sum(dot) / count);
    for (int64_t o = threadIdx.x; o < octets.count(); o += blockDim.x) {
      load(o);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) g[i] = rstd * (g[i] - mean_g - x[i] * mean_dot);
      octets.store(gx + r * C, o, g);
    }
  });
}

// dots[slab, c] = Σ gy · x̂ and sums[slab, c] = Σ gy over a slab's rows. A warp takes 32 columns of every
// eighth row, in W over the 32 rows that this makes; the warps' sums are added in f64.
template <class T, bool kCenter>
__global__ void norm_slab_kernel(Norm<T> norm, const T* gy, int64_t slabs, double* dots, double* sums) {
  using W = wide_t<T>;
  __shared__ double parts[2][kSlabLanes][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t C = norm.C, tiles = (C + kWarp - 1) / kWarp;
  for_each_row(tiles * slabs, [&](int64_t unit) {
    const int64_t c = unit % tiles * kWarp + lane, slab = unit / tiles;
    const int64_t last = (slab + 1) * kSlabRows, end = last < norm.R ? last : norm.R;
    W dot = 0, sum = 0;
    for (int64_t r = slab * kSlabRows + warp; c < C && r < end; r += kSlabLanes) {
      const W g = widen(gy[r * C + c]);
      const W mean = kCenter ? norm.mean[r] : W{0};
      dot += g * ((widen(norm.x[r * C + c]) - mean) * norm.rstd[r]);
      sum += g;
    }
    parts[0][warp][lane] = static_cast<double>(dot);
    parts[1][warp][lane] = static_cast<double>(sum);
    __syncthreads();
    if (warp < 2 && c < C) {
      double total = 0;
      for (int w = 0; w < kSlabLanes; ++w) total += parts[warp][w][lane];
      (warp == 0 ? dots : sums)[slab * C + c] = total;
    }
    __syncthreads();
  });
}

template <class T>
__global__ void norm_parameter_kernel(const double* dots, const double* sums, int64_t slabs, int64_t C,
                                      T* gweight, T* gbias) {
  for_each_index(C, [&](int64_t c) {
    double dot = 0, sum = 0;
    for (int64_t s = 0; s < slabs; ++s) {
      dot += dots[s * C + c];
      sum += sums[s * C + c];
    }
    if (gweight) gweight[c] = narrow<T>(dot);
    if (gbias) gbias[c] = narrow<T>(sum);
  });
}

template <class T>
const T* data_or_null(const Tensor& x) {
  return x.defined() ? x.data<T>() : nullptr;
}

template <class T>
T* mutable_data_or_null(Tensor& x) {
  return x.defined() ? x.mutable_data<T>() : nullptr;
}

template <class T, bool kCenter>
void norm_forward(const char* name, Stream& stream, const Norm<T>& norm, double epsilon, Tensor& y) {
  stream.launch(name, grid_of_rows(norm.R, row_threads(norm.C)), norm_kernel<T, kCenter>, norm, epsilon,
                y.mutable_data<T>());
}

template <class T, bool kCenter>
void norm_backward(const char* name, CudaBackend& backend, const Norm<T>& norm, const Tensor& gy, Tensor& gx,
                   Tensor& gweight, Tensor& gbias) {
  Stream& stream = backend.stream();
  const int64_t R = norm.R, C = norm.C;
  const T* up = gy.data<T>();
  if (gx.defined()) {
    stream.launch(name, grid_of_rows(R, row_threads(C)), norm_input_gradient_kernel<T, kCenter>, norm, up,
                  gx.mutable_data<T>());
  }
  if (!gweight.defined() && !gbias.defined()) return;
  const int64_t slabs = (R + kSlabRows - 1) / kSlabRows;
  const Scratch scratch(backend, 2 * slabs * C * size_of(DType::f64));
  double *dots = scratch.as<double>(), *sums = dots + slabs * C;
  stream.launch(name, grid_of_rows((C + kWarp - 1) / kWarp * slabs, kSlabThreads),
                norm_slab_kernel<T, kCenter>, norm, up, slabs, dots, sums);
  stream.launch(name, grid_for(stream, C), norm_parameter_kernel<T>, dots, sums, slabs, C,
                mutable_data_or_null<T>(gweight), mutable_data_or_null<T>(gbias));
}

}  // namespace

// Forward writes mean and rstd, fresh tensors; backward reads them, and so their version stays.
template <class T>
static Norm<T> norm_of(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean,
                       const Tensor& rstd) {
  using W = wide_t<T>;
  return {x.size(0),
          x.size(1),
          x.data<T>(),
          data_or_null<T>(weight),
          data_or_null<T>(bias),
          const_cast<W*>(data_or_null<W>(mean)),
          const_cast<W*>(data_or_null<W>(rstd))};
}

void CudaBackend::layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon,
                             Tensor& y, Tensor& mean, Tensor& rstd) {
  if (x.numel() == 0) return;
  visit_floating(x.dtype(), "layer_norm", [&]<class T>(std::type_identity<T>) {
    norm_forward<T, true>("layer_norm", stream_, norm_of<T>(x, weight, bias, mean, rstd), epsilon, y);
  });
}

void CudaBackend::layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& mean,
                                      const Tensor& rstd, const Tensor& gy, Tensor& gx, Tensor& gweight,
                                      Tensor& gbias) {
  if (x.size(1) == 0) return;
  visit_floating(x.dtype(), "layer_norm_backward", [&]<class T>(std::type_identity<T>) {
    norm_backward<T, true>("layer_norm_backward", *this, norm_of<T>(x, weight, {}, mean, rstd), gy, gx,
                           gweight, gbias);
  });
}

void CudaBackend::rms_norm(const Tensor& x, const Tensor& weight, double epsilon, Tensor& y, Tensor& rrms) {
  if (x.numel() == 0) return;
  visit_floating(x.dtype(), "rms_norm", [&]<class T>(std::type_identity<T>) {
    norm_forward<T, false>("rms_norm", stream_, norm_of<T>(x, weight, {}, {}, rrms), epsilon, y);
  });
}

void CudaBackend::rms_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& rrms,
                                    const Tensor& gy, Tensor& gx, Tensor& gweight) {
  if (x.size(1) == 0) return;
  visit_floating(x.dtype(), "rms_norm_backward", [&]<class T>(std::type_identity<T>) {
    Tensor no_bias;
    norm_backward<T, false>("rms_norm_backward", *this, norm_of<T>(x, weight, {}, {}, rrms), gy, gx, gweight,
                            no_bias);
  });
}

}  // namespace tapehead
