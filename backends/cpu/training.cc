// The optimiser's sweep, the gradient's norm, and tensors of random numbers.
#include <bit>
#include <cmath>
#include <numbers>
#include <vector>

#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/backends/cpu/parallel.h"

namespace tapehead {

// Calls f(tensor, begin, end) in parallel for ranges of elements that cover all tensors, as if they were one.
template <class Tensors, class F>
static void for_all_elements(const Tensors& tensors, F&& f) {
  int64_t total = 0;
  for (const Tensor& t : tensors) total += t.numel();
  parallel_for(total, kGrain, [&](int64_t begin, int64_t end) {
    int64_t first = 0;  // of tensor i, among all elements
    for (size_t i = 0; i < tensors.size() && first < end; ++i) {
      const int64_t size = tensors[i].numel();
      if (begin < first + size) f(i, std::max<int64_t>(begin - first, 0), std::min(end - first, size));
      first += size;
    }
  });
}

void CpuBackend::adamw(const AdamW& numbers, std::span<Tensor> p, std::span<const Tensor> g, std::span<Tensor> m,
                       std::span<Tensor> v) {
  if (p.empty()) return;
  for (auto list : {p, m, v}) {
    for (Tensor& t : list) t.bump_version();
  }
  visit_floating(p[0].dtype(), "adamw", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    const double correction1 = 1 - std::pow(numbers.beta1, static_cast<double>(numbers.step));
    const double correction2 = 1 - std::pow(numbers.beta2, static_cast<double>(numbers.step));
    const W keep = static_cast<W>(1 - numbers.learning_rate * numbers.weight_decay);
    const W b1 = static_cast<W>(numbers.beta1), c1 = static_cast<W>(1 - numbers.beta1);
    const W b2 = static_cast<W>(numbers.beta2), c2 = static_cast<W>(1 - numbers.beta2);
    const W rate = static_cast<W>(numbers.learning_rate / correction1), root = static_cast<W>(1 / std::sqrt(correction2));
    const W epsilon = static_cast<W>(numbers.epsilon), scale = static_cast<W>(numbers.gradient_scale);
    for_all_elements(p, [&](size_t k, int64_t begin, int64_t end) {
      T* pp = const_cast<T*>(p[k].data<T>());
      const T* pg = g[k].data<T>();
      T* pm = const_cast<T*>(m[k].data<T>());
      T* pv = const_cast<T*>(v[k].data<T>());
      for (int64_t i = begin; i < end; ++i) {
        const W gradient = scale * static_cast<W>(pg[i]);
        const W mi = b1 * static_cast<W>(pm[i]) + c1 * gradient, vi = b2 * static_cast<W>(pv[i]) + c2 * gradient * gradient;
        pm[i] = static_cast<T>(mi);
        pv[i] = static_cast<T>(vi);
        pp[i] = static_cast<T>(keep * static_cast<W>(pp[i]) - rate * mi / (root * std::sqrt(vi) + epsilon));
      }
    });
  });
}

double CpuBackend::squared_norm(std::span<const Tensor> tensors) {
  double total = 0;
  for (const Tensor& t : tensors) {
    visit_floating(t.dtype(), "squared_norm", [&]<class T>(std::type_identity<T>) {
      const T* x = t.data<T>();
      for (int64_t i = 0; i < t.numel(); ++i) {
        const double w = static_cast<wide_t<T>>(x[i]);
        total += w * w;
      }
    });
  }
  return total;
}

// Element i of y = draw(words of block first + i / 4, i % 4).
template <class Draw>
static void fill_random(uint64_t seed, uint64_t first, Tensor& y, Draw&& draw) {
  visit_floating(y.dtype(), "random", [&]<class T>(std::type_identity<T>) {
    T* out = y.mutable_data<T>();
    const int64_t n = y.numel();
    parallel_for((n + 3) / 4, kGrain / 64, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const std::array<double, 4> numbers = draw(philox(seed, first + static_cast<uint64_t>(block)));
        for (int64_t i = 4 * block; i < std::min(n, 4 * block + 4); ++i) {
          out[i] = static_cast<T>(numbers[static_cast<size_t>(i % 4)]);
        }
      }
    });
  });
}

void CpuBackend::uniform(double low, double high, uint64_t seed, uint64_t first, Tensor& y) {
  fill_random(seed, first, y, [=](const std::array<uint32_t, 4>& words) {
    std::array<double, 4> numbers;
    for (size_t i = 0; i < 4; ++i) numbers[i] = low + (high - low) * to_uniform(words[i]);
    return numbers;
  });
}

void CpuBackend::normal(double mean, double deviation, uint64_t seed, uint64_t first, Tensor& y) {
  fill_random(seed, first, y, [=](const std::array<uint32_t, 4>& words) {
    std::array<double, 4> numbers;
    for (size_t i = 0; i < 4; i += 2) {
      const double radius = deviation * std::sqrt(-2 * std::log((words[i] + 1.0) * 0x1p-32));
      const double angle = 2 * std::numbers::pi * (words[i + 1] * 0x1p-32);
      numbers[i] = mean + radius * std::cos(angle);
      numbers[i + 1] = mean + radius * std::sin(angle);
    }
    return numbers;
  });
}

}  // namespace tapehead
