// Rotary positions: every pair of a head's numbers turned by its position's angle.
#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/core/parallel.h"

namespace tapehead {

void CpuBackend::rotary(const Tensor& x, const Tensor& cosine, const Tensor& sine, bool backward, Tensor& y) {
  if (x.numel() == 0) return;
  visit_floating(x.dtype(), "rotary", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    const int64_t heads = x.size(1), positions = x.size(2), half = x.size(3) / 2;
    const Strides &sx = x.strides(), &sy = y.strides();
    const T* px = x.data<T>();
    const W *cosines = cosine.data<W>(), *sines = sine.data<W>();
    T* py = y.mutable_data<T>();
    const W sign = backward ? W{-1} : W{1};
    parallel_for(x.size(0) * heads * positions, kGrain / (2 * half) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t t = row % positions, h = row / positions % heads, b = row / positions / heads;
        const T* in = px + b * sx[0] + h * sx[1] + t * sx[2];
        T* out = py + b * sy[0] + h * sy[1] + t * sy[2];
        for (int64_t i = 0; i < half; ++i) {
          const W u = static_cast<W>(in[i]), v = static_cast<W>(in[i + half]);
          const W c = cosines[t * half + i], s = sign * sines[t * half + i];
          out[i] = static_cast<T>(u * c - v * s);
          out[i + half] = static_cast<T>(v * c + u * s);
        }
      }
    });
  });
}

}  // namespace tapehead
