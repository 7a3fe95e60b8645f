// Tensors of random numbers: each from the same words and by the same formula as on the CPU. They are the
// same where the two libraries' log, sin and cos round alike, which in f32 is nearly everywhere.
#include "tapehead/backends/cuda/cuda_backend.h"
#include "tapehead/backends/cuda/launch.h"
#include "tapehead/backends/normal_pair.h"
#include "tapehead/core/random.h"

namespace tapehead {

// Four elements of y come from each block of random words.
template <class T>
static __global__ void normal_kernel(double mean, double deviation, RandomStart start, int64_t n, T* y) {
  const uint64_t first = start.block();
  for_each_index((n + 3) / 4, [&](int64_t block) {
    const std::array<uint32_t, 4> words = philox(start.seed, first + static_cast<uint64_t>(block));
    T numbers[4];
    for (size_t i = 0; i < 4; i += 2) {
      const NormalPair pair(words[i], words[i + 1]);
      const double radius = deviation * pair.radius;
      numbers[i] = narrow<T>(__dadd_rn(mean, __dmul_rn(radius, cos(pair.angle))));
      numbers[i + 1] = narrow<T>(__dadd_rn(mean, __dmul_rn(radius, sin(pair.angle))));
    }
    for (int64_t i = 0; i < 4 && 4 * block + i < n; ++i) y[4 * block + i] = numbers[i];
  });
}

void CudaBackend::normal(double mean, double deviation, uint64_t seed, uint64_t first, Tensor& y) {
  visit_floating(y.dtype(), "normal", [&]<class T>(std::type_identity<T>) {
    stream_.launch("normal", grid_for(stream_, (y.numel() + 3) / 4), normal_kernel<T>, mean, deviation,
                   random_start(seed, first), y.numel(), y.mutable_data<T>());
  });
}

}  // namespace tapehead
