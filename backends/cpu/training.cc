// The optimisers' sweep, the norm of gradients, and tensors of random numbers.

// The order matters (simd.h).
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/training.cc"
#include "tapehead/backends/cpu/simd.h"
#include <hwy/foreach_target.h>
#include "tapehead/backends/cpu/simd_math-inl.h"
// clang-format on

#include <algorithm>
#include <cmath>
#include <vector>

#include "tapehead/backends/cpu/convert.h"
#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/backends/cpu/workspace.h"
#include "tapehead/backends/normal_pair.h"
#include "tapehead/backends/optimizer_steps.h"
#include "tapehead/core/parallel.h"

// ---- Vector code, for each instruction set

HWY_BEFORE_NAMESPACE();
namespace tapehead::HWY_NAMESPACE {

// Calls f(load, store) for all vectors of n elements: load(p) is those at p, store(v, p) puts v there.
template <class D, class F>
static HWY_INLINE void for_vectors(D d, int64_t n, F&& f) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    f([=](const auto* p) HWY_ATTR { return hn::LoadU(d, p + i); },
      [=](auto v, auto* p) HWY_ATTR { hn::StoreU(v, d, p + i); });
  }
  if (const int64_t rest = n - i; rest > 0) {
    f([=](const auto* p) HWY_ATTR { return LoadTail(d, p + i, rest); },
      [=](auto v, auto* p) HWY_ATTR { StoreTail(d, v, p + i, rest); });
  }
}

template <class T>
static void adamw_run(const AdamWStep<T>& step, int64_t n, T* p, const T* g, T* m, T* v) {
  const hn::ScalableTag<T> d;
  const auto set = [=](T x) HWY_ATTR { return hn::Set(d, x); };
  for_vectors(d, n, [&](auto load, auto store) HWY_ATTR {
    const auto gi = hn::Mul(set(step.scale), load(g));
    const auto mi = hn::MulAdd(set(step.b1), load(m), hn::Mul(set(step.c1), gi));
    const auto vi = hn::MulAdd(set(step.b2), load(v), hn::Mul(set(step.c2), hn::Mul(gi, gi)));
    const auto denominator = hn::MulAdd(set(step.root), hn::Sqrt(vi), set(step.epsilon));
    store(hn::Sub(hn::Mul(set(step.keep), load(p)), hn::Div(hn::Mul(set(step.rate), mi), denominator)), p);
    store(mi, m);
    store(vi, v);
  });
}

static void adamw_f32(const AdamWStep<float>& step, int64_t n, float* p, const float* g, float* m, float* v) {
  adamw_run(step, n, p, g, m, v);
}

static void adamw_f64(const AdamWStep<double>& step, int64_t n, double* p, const double* g, double* m,
                      double* v) {
  adamw_run(step, n, p, g, m, v);
}

// Without momentum, b is null.
template <class T>
static void sgd_run(const SgdStep<T>& step, int64_t n, T* p, const T* g, T* b) {
  const hn::ScalableTag<T> d;
  const auto set = [=](T x) HWY_ATTR { return hn::Set(d, x); };
  for_vectors(d, n, [&](auto load, auto store) HWY_ATTR {
    const auto pi = load(p);
    const auto gi = hn::MulAdd(set(step.decay), pi, hn::Mul(set(step.scale), load(g)));
    auto change = gi;
    if (b) {
      const auto bi = hn::MulAdd(set(step.momentum), load(b), gi);
      store(bi, b);
      change = step.nesterov ? hn::MulAdd(set(step.momentum), bi, gi) : bi;
    }
    store(hn::NegMulAdd(set(step.rate), change, hn::Mul(set(step.keep), pi)), p);
  });
}

static void sgd_f32(const SgdStep<float>& step, int64_t n, float* p, const float* g, float* b) {
  sgd_run(step, n, p, g, b);
}

static void sgd_f64(const SgdStep<double>& step, int64_t n, double* p, const double* g, double* b) {
  sgd_run(step, n, p, g, b);
}

static double squares_f64(int64_t n, const double* x) {
  const hn::ScalableTag<double> d;
  return Sum(
      d, n, [](auto v) HWY_ATTR { return hn::Mul(v, v); }, x);
}

static double squares_f32(int64_t n, const float* x) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> narrow;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  // Two sums, so that an addition need not wait for the one before.
  auto even = hn::Zero(d), odd = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto a = hn::PromoteTo(d, hn::LoadU(narrow, x + i)),
               b = hn::PromoteTo(d, hn::LoadU(narrow, x + i + lanes));
    even = hn::MulAdd(a, a, even);
    odd = hn::MulAdd(b, b, odd);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  for (; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

}  // namespace tapehead::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

// ---- What is compiled once

#if HWY_ONCE
namespace tapehead {

HWY_EXPORT(adamw_f32);
HWY_EXPORT(adamw_f64);
HWY_EXPORT(sgd_f32);
HWY_EXPORT(sgd_f64);
HWY_EXPORT(squares_f32);
HWY_EXPORT(squares_f64);

// Calls f(tensor, begin, end) in parallel for ranges of elements that cover all tensors, as if they were one.
template <class F>
static void for_all_elements(std::span<const Tensor> tensors, F&& f) {
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

template <class T>
static std::vector<T*> pointers(std::span<Tensor> tensors) {
  std::vector<T*> result;
  for (Tensor& t : tensors) result.push_back(t.mutable_data<T>());
  return result;
}

// Calls update(n, p, g, first, second) in parallel for runs of elements that cover all parameters; `first`
// and `second` are what the optimiser keeps of each, null for an empty list. With master weights the update
// is made on them, and each parameter written anew from its own while that is in the cache.
template <class T, class F>
static void sweep(std::span<Tensor> p, std::span<const Tensor> g, std::span<Tensor> first,
                  std::span<Tensor> second, std::span<Tensor> master, F&& update) {
  const std::vector<T*> to_first = pointers<T>(first), to_second = pointers<T>(second),
                        to_weight = pointers<T>(master.empty() ? p : master);
  std::vector<std::byte*> to_p;
  for (Tensor& t : p) to_p.push_back(static_cast<std::byte*>(t.mutable_raw_data()));
  const auto at = [](const std::vector<T*>& list, size_t i, int64_t element) {
    return list.empty() ? nullptr : list[i] + element;
  };
  for_all_elements(g, [&](size_t i, int64_t begin, int64_t end) {
    const auto run = [&](int64_t element, int64_t n, const T* gradient) {
      update(n, to_weight[i] + element, gradient, at(to_first, i, element), at(to_second, i, element));
    };
    if (master.empty()) return run(begin, end - begin, g[i].data<T>() + begin);
    constexpr int64_t kBlock = 1024;
    T gradient[kBlock];
    const DType dtype = p[i].dtype(), g_dtype = g[i].dtype(), wide = dtype_of<T>();
    const auto* from_g = static_cast<const std::byte*>(g[i].raw_data());
    for (int64_t element = begin; element < end; element += kBlock) {
      const int64_t n = std::min(kBlock, end - element);
      convert_run(g_dtype, from_g + element * size_of(g_dtype), wide, gradient, n);
      run(element, n, gradient);
      convert_run(wide, to_weight[i] + element, dtype, to_p[i] + element * size_of(dtype), n);
    }
  });
}

// With what stands on the device, if anything does.
template <class Numbers>
static Numbers completed(Numbers numbers) {
  if (!numbers.on_device.defined()) return numbers;
  const double* values = numbers.on_device.template data<double>();
  numbers.learning_rate = values[0];
  numbers.gradient_scale = values[1];
  if constexpr (requires { numbers.step; }) numbers.step = static_cast<int64_t>(values[2]);
  return numbers;
}

// Calls f with float or double: what a step on parameters of this dtype computes in.
template <class F>
static void visit_step(DType dtype, F&& f) {
  dtype == DType::f64 ? f(double()) : f(float());
}

void CpuBackend::adamw(const AdamW& numbers, std::span<Tensor> p, std::span<const Tensor> g,
                       std::span<Tensor> m, std::span<Tensor> v, std::span<Tensor> master) {
  visit_step(p[0].dtype(), [&]<class T>(T) {
    const AdamWStep<T> step(completed(numbers));
    sweep<T>(p, g, m, v, master, [&](int64_t n, T* pi, const T* gi, T* mi, T* vi) {
      if constexpr (std::is_same_v<T, double>) {
        HWY_DYNAMIC_DISPATCH(adamw_f64)(step, n, pi, gi, mi, vi);
      } else {
        HWY_DYNAMIC_DISPATCH(adamw_f32)(step, n, pi, gi, mi, vi);
      }
    });
  });
}

void CpuBackend::sgd(const Sgd& numbers, std::span<Tensor> p, std::span<const Tensor> g, std::span<Tensor> b,
                     std::span<Tensor> master) {
  visit_step(p[0].dtype(), [&]<class T>(T) {
    const SgdStep<T> step(completed(numbers));
    sweep<T>(p, g, b, {}, master, [&](int64_t n, T* pi, const T* gi, T* bi, T*) {
      if constexpr (std::is_same_v<T, double>) {
        HWY_DYNAMIC_DISPATCH(sgd_f64)(step, n, pi, gi, bi);
      } else {
        HWY_DYNAMIC_DISPATCH(sgd_f32)(step, n, pi, gi, bi);
      }
    });
  });
}

void CpuBackend::squared_norm(std::span<const Tensor> tensors, Tensor& y) {
  // Sums of pieces of one size, added in order: the same for any number of threads.
  constexpr int64_t kPiece = kGrain;
  double total = 0;
  for (const Tensor& t : tensors) {
    Workspace<double> sums(static_cast<size_t>((t.numel() + kPiece - 1) / kPiece));
    visit_floating(t.dtype(), "squared_norm", [&]<class T>(std::type_identity<T>) {
      const T* x = t.data<T>();
      parallel_for(static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const T* piece = x + i * kPiece;
          const int64_t n = std::min(kPiece, t.numel() - i * kPiece);
          double& sum = sums[static_cast<size_t>(i)];
          if constexpr (std::is_same_v<T, float>) {
            sum = HWY_DYNAMIC_DISPATCH(squares_f32)(n, piece);
          } else if constexpr (std::is_same_v<T, double>) {
            sum = HWY_DYNAMIC_DISPATCH(squares_f64)(n, piece);
          } else {
            float wide[1024];
            for (int64_t j = 0; j < n; j += 1024) {
              const int64_t count = std::min<int64_t>(1024, n - j);
              convert_run(t.dtype(), piece + j, DType::f32, wide, count);
              sum += HWY_DYNAMIC_DISPATCH(squares_f32)(count, wide);
            }
          }
        }
      });
    });
    for (const double sum : sums) total += sum;
  }
  *y.mutable_data<double>() = total;
}

// ---- Random numbers

void CpuBackend::normal(double mean, double deviation, uint64_t seed, uint64_t first, Tensor& y) {
  visit_floating(y.dtype(), "normal", [&]<class T>(std::type_identity<T>) {
    T* out = y.mutable_data<T>();
    const int64_t n = y.numel();
    parallel_for((n + 3) / 4, kGrain / 64, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const std::array<uint32_t, 4> words = philox(seed, first + static_cast<uint64_t>(block));
        std::array<T, 4> numbers;
        for (size_t i = 0; i < 4; i += 2) {
          const NormalPair pair(words[i], words[i + 1]);
          const double radius = deviation * pair.radius;
          numbers[i] = static_cast<T>(mean + radius * std::cos(pair.angle));
          numbers[i + 1] = static_cast<T>(mean + radius * std::sin(pair.angle));
        }
        std::copy_n(numbers.begin(), std::min<int64_t>(4, n - 4 * block), out + 4 * block);
      }
    });
  });
}

}  // namespace tapehead
#endif
