// Rotary positions: each thread turns one pair.
#include "tapehead/backends/cuda/cuda_backend.h"
#include "tapehead/backends/cuda/launch.h"

namespace tapehead {
namespace {

/// x and y (B, H, T, D): where each head's row begins.
struct RotaryShape {
  int64_t H, T, half;
  int64_t x[3], y[3];  // strides along B, H and T
};

template <class T>
__global__ void rotary_kernel(RotaryShape shape, int64_t pairs, const T* x, const wide_t<T>* cosine,
                              const wide_t<T>* sine, bool backward, T* y) {
  using W = wide_t<T>;
  for_each_index(pairs, [&](int64_t pair) {
    const int64_t i = pair % shape.half, row = pair / shape.half;
    const int64_t t = row % shape.T, head = row / shape.T;
    const int64_t b = head / shape.H, h = head % shape.H;
    const T* in = x + b * shape.x[0] + h * shape.x[1] + t * shape.x[2];
    T* out = y + b * shape.y[0] + h * shape.y[1] + t * shape.y[2];
    const W c = cosine[t * shape.half + i],
            s = backward ? -sine[t * shape.half + i] : sine[t * shape.half + i];
    const W first = widen(in[i]), second = widen(in[i + shape.half]);
    out[i] = narrow<T>(first * c - second * s);
    out[i + shape.half] = narrow<T>(second * c + first * s);
  });
}

}  // namespace

void CudaBackend::rotary(const Tensor& x, const Tensor& cosine, const Tensor& sine, bool backward,
                         Tensor& y) {
  visit_floating(x.dtype(), "rotary", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    RotaryShape shape = {x.size(1), x.size(2), x.size(3) / 2, {}, {}};
    std::copy_n(x.strides().begin(), 3, shape.x);
    std::copy_n(y.strides().begin(), 3, shape.y);
    const int64_t pairs = x.numel() / 2;
    stream_.launch("rotary", grid_for(stream_, pairs), rotary_kernel<T>, shape, pairs, x.data<T>(),
                   cosine.data<W>(), sine.data<W>(), backward, y.mutable_data<T>());
  });
}

}  // namespace tapehead
