// Tensors of random numbers: each from the same words and by the same formula as on the CPU. Uniform numbers are the same, bit
// for bit; normal ones where the two libraries' log, sin and cos round alike, which in f32 is nearly everywhere.
#include <numbers>

#include "tapehead/backends/cuda/cuda_backend.h"
#include "tapehead/backends/cuda/launch.h"
#include "tapehead/core/random.h"

namespace tapehead {

namespace {

struct Uniform {
  double low, high;

  template <class T>
  __device__ void operator()(const std::array<uint32_t, 4>& words, T (&numbers)[4]) const {
    for (int i = 0; i < 4; ++i) {
      const double number =
          __dadd_rn(low, __dmul_rn(high - low, double{to_uniform(words[static_cast<size_t>(i)])}));
      numbers[i] = narrow<T>(number);
      // What the dtype rounds up to `high`, which the interval leaves out, becomes its other end.
      if (static_cast<double>(widen(numbers[i])) >= high) numbers[i] = narrow<T>(low);
    }
  }
};

struct Normal {
  double mean, deviation;

  template <class T>
  __device__ void operator()(const std::array<uint32_t, 4>& words, T (&numbers)[4]) const {
    for (size_t i = 0; i < 4; i += 2) {
      const double radius = deviation * sqrt(-2 * log((words[i] + 1.0) * 0x1p-32));
      const double angle = 2 * std::numbers::pi * (words[i + 1] * 0x1p-32);
      numbers[i] = narrow<T>(__dadd_rn(mean, __dmul_rn(radius, cos(angle))));
      numbers[i + 1] = narrow<T>(__dadd_rn(mean, __dmul_rn(radius, sin(angle))));
    }
  }
};

}  // namespace

// Four elements of y come from each block of random words.
template <class T, class Draw>
static __global__ void random_kernel(Draw draw, uint64_t seed, uint64_t first, int64_t n, T* y) {
  for_each_index((n + 3) / 4, [&](int64_t block) {
    T numbers[4];
    draw(philox(seed, first + static_cast<uint64_t>(block)), numbers);
    for (int64_t i = 0; i < 4 && 4 * block + i < n; ++i) y[4 * block + i] = numbers[i];
  });
}

template <class Draw>
static void fill_random(Stream& stream, const char* op, Draw draw, uint64_t seed, uint64_t first, Tensor& y) {
  visit_floating(y.dtype(), op, [&]<class T>(std::type_identity<T>) {
    stream.launch(op, grid_for(stream, (y.numel() + 3) / 4), random_kernel<T, Draw>, draw, seed, first,
                  y.numel(), y.mutable_data<T>());
  });
}

void CudaBackend::uniform(double low, double high, uint64_t seed, uint64_t first, Tensor& y) {
  fill_random(stream_, "uniform", Uniform{low, high}, seed, first, y);
}

void CudaBackend::normal(double mean, double deviation, uint64_t seed, uint64_t first, Tensor& y) {
  fill_random(stream_, "normal", Normal{mean, deviation}, seed, first, y);
}

}  // namespace tapehead
