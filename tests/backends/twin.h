// Kernels of two devices side by side: the same arguments on both, and what comes of them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tapehead/backends/backend.h"
#include "tapehead/tests/golden_cases.h"
#include "tapehead/tests/testing.h"

namespace tapehead {

constexpr Device kCpu{Device::cpu}, kCuda{Device::cuda};
constexpr DType kDTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16};

/// What the arithmetic of `dtype` may differ by, relatively: sums in another order, and then one rounding.
inline double tolerance(DType dtype) { return dtype == DType::f64 ? 1e-12 : std::max(2e-5, epsilon(dtype)); }

/// The same tensor on both devices.
struct Twin {
  Tensor cpu, cuda;

  Twin() = default;
  /// Holding x, or nothing; `room` elements of others before it, and as many between its rows.
  explicit Twin(const Tensor& x, int64_t room = 0) {
    if (!x.defined()) return;
    if (room == 0) {
      cpu = x.clone();
      cuda = x.to(kCuda);
      return;
    }
    std::vector<int64_t> sizes = x.shape().sizes();
    sizes.back() += room;
    const Shape wide(sizes);
    for (Tensor* y : {&cpu, &cuda}) {
      const Device device = y == &cpu ? kCpu : kCuda;
      const Tensor all({wide.numel() + room}, x.dtype(), device);
      *y = all.alias(x.shape(), wide.contiguous_strides(), room);
      y->copy_from(x.to(device));
    }
  }
  static Twin random(Shape shape, uint64_t seed, double scale, DType dtype, int64_t room = 0) {
    return Twin(random_tensor(std::move(shape), seed, scale, dtype), room);
  }
  /// For a result: NaN until it is written.
  static Twin result(Shape shape, DType dtype, int64_t room = 0) {
    return Twin(Tensor::full(std::move(shape), std::nan(""), dtype), room);
  }
  static Twin counts(Shape shape) { return Twin(Tensor::full(std::move(shape), -1, DType::i64)); }
};

inline void expect_agreement(const Twin& x, double rtol, double atol, const std::string& what) {
  const Tensor cpu = x.cpu.contiguous(), cuda = x.cuda.contiguous().to(kCpu);
  if (!is_floating(cpu.dtype())) {
    EXPECT_EQ(cuda.to_vector<int64_t>(), cpu.to_vector<int64_t>()) << what;
    return;
  }
  expect_close(cuda.to(DType::f64), cpu.to(DType::f64), rtol, atol, what);
}

/// Calls f(backend, take) for both devices, where take gives a twin's tensor there.
template <class F>
void on_both(F&& f) {
  f(backend(kCpu), [](const Twin& x) { return x.cpu; });
  f(backend(kCuda), [](const Twin& x) { return x.cuda; });
}

}  // namespace tapehead
