// Softmax, layer norm and RMS norm, row by row.

// The order matters (simd.h).
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/rows.cc"
#include "tapehead/backends/cpu/simd.h"
#include <hwy/foreach_target.h>
#include "tapehead/backends/cpu/simd_math-inl.h"
// clang-format on

#include <array>
#include <cmath>

#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/core/parallel.h"

// ---- Kernels on float or double, for each instruction set

HWY_BEFORE_NAMESPACE();
namespace tapehead::HWY_NAMESPACE {

template <class T>
const T* data_or_null(const Tensor& x) {
  return x.defined() ? x.data<T>() : nullptr;
}

template <class T>
T* mutable_data_or_null(Tensor& x) {
  return x.defined() ? x.mutable_data<T>() : nullptr;
}

// Calls f(r) for all rows of (R, C), in parallel; never where there are no columns.
template <class F>
void for_rows(const Tensor& x, F&& f) {
  const int64_t rows = x.size(0), columns = x.size(1);
  if (columns == 0) return;
  parallel_for(rows, (kGrain + columns - 1) / columns, [&](int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t r = begin; r < end; ++r) f(r);
  });
}

template <class T>
void SoftmaxRows(const Tensor& x, bool log, Tensor& y) {
  const int64_t columns = x.size(1);
  const T* px = x.data<T>();
  T* py = y.mutable_data<T>();
  for_rows(x, [=](int64_t r) HWY_ATTR {
    const hn::ScalableTag<T> d;
    const T* in = px + r * columns;
    T* out = py + r * columns;
    const auto largest = hn::Set(d, Largest(d, columns, in));
    const auto shifted_exp = [&](auto v) HWY_ATTR { return Exp(d, hn::Sub(v, largest)); };
    if (log) {
      const auto log_sum = hn::Set(d, static_cast<T>(std::log(Sum(d, columns, shifted_exp, in))));
      Map(
          d, columns, out, [&](auto v) HWY_ATTR { return hn::Sub(hn::Sub(v, largest), log_sum); }, in);
    } else {
      const auto scale = hn::Set(d, static_cast<T>(1 / MapSum(d, columns, out, shifted_exp, in)));
      Map(
          d, columns, out, [&](auto e) HWY_ATTR { return hn::Mul(e, scale); }, out);
    }
  });
}

// softmax: gx = y · (gy - Σ gy · y); log_softmax: gx = gy - exp(y) · Σ gy.
template <class T>
void SoftmaxBackwardRows(const Tensor& y, const Tensor& gy, bool log, Tensor& gx) {
  const int64_t columns = y.size(1);
  const T* py = y.data<T>();
  const T* pg = gy.data<T>();
  T* px = gx.mutable_data<T>();
  for_rows(y, [=](int64_t r) HWY_ATTR {
    const hn::ScalableTag<T> d;
    const T* result = py + r * columns;
    const T* up = pg + r * columns;
    T* out = px + r * columns;
    if (log) {
      const auto sum = hn::Set(d, static_cast<T>(Sum(
                                      d, columns, [](auto g) HWY_ATTR { return g; }, up)));
      Map(
          d, columns, out, [&](auto v, auto g) HWY_ATTR { return hn::NegMulAdd(Exp(d, v), sum, g); }, result,
          up);
    } else {
      const auto product = [](auto v, auto g) HWY_ATTR { return hn::Mul(v, g); };
      const auto sum = hn::Set(d, static_cast<T>(Sum(d, columns, product, result, up)));
      Map(
          d, columns, out, [&](auto v, auto g) HWY_ATTR { return hn::Mul(v, hn::Sub(g, sum)); }, result, up);
    }
  });
}

// Layer norm, or, unless `centered`, RMS norm: the same around 0 instead of the mean.
template <class T>
void NormRows(bool centered, const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon,
              Tensor& y, Tensor& mean, Tensor& rstd) {
  const int64_t columns = x.size(1);
  const T* px = x.data<T>();
  const T* w = data_or_null<T>(weight);
  const T* b = data_or_null<T>(bias);
  T* py = y.mutable_data<T>();
  T* means = mutable_data_or_null<T>(mean);
  T* rstds = mutable_data_or_null<T>(rstd);
  for_rows(x, [=](int64_t r) HWY_ATTR {
    const hn::ScalableTag<T> d;
    const T* in = px + r * columns;
    T* out = py + r * columns;
    const double count = static_cast<double>(columns);
    T m = 0;
    if (centered)
      m = static_cast<T>(Sum(
                             d, columns, [](auto v) HWY_ATTR { return v; }, in) /
                         count);
    const auto center = hn::Set(d, m);
    const auto square = [&](auto v) HWY_ATTR {
      const auto c = hn::Sub(v, center);
      return hn::Mul(c, c);
    };
    const T s = static_cast<T>(1 / std::sqrt(Sum(d, columns, square, in) / count + epsilon));
    const auto scale = hn::Set(d, s);
    const auto normal = [&](auto v) HWY_ATTR { return hn::Mul(hn::Sub(v, center), scale); };
    if (w && b) {
      Map(
          d, columns, out, [&](auto v, auto u, auto c) HWY_ATTR { return hn::MulAdd(normal(v), u, c); }, in,
          w, b);
    } else if (w) {
      Map(
          d, columns, out, [&](auto v, auto u) HWY_ATTR { return hn::Mul(normal(v), u); }, in, w);
    } else if (b) {
      Map(
          d, columns, out, [&](auto v, auto c) HWY_ATTR { return hn::Add(normal(v), c); }, in, b);
    } else {
      Map(d, columns, out, normal, in);
    }
    if (means) means[r] = m;
    if (rstds) rstds[r] = s;
  });
}

// With x̂ = (x - mean) · rstd and g = gy · weight: gx = rstd · (g - mean(g) - x̂ · mean(g · x̂)). Of RMS
// norm, whose `mean` is undefined, neither mean is subtracted.
template <class T>
void NormInputGradient(const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                       const Tensor& gy, Tensor& gx) {
  const int64_t columns = x.size(1);
  const T* px = x.data<T>();
  const T* w = data_or_null<T>(weight);
  const T* pg = gy.data<T>();
  const T* means = data_or_null<T>(mean);
  const T* rstds = rstd.data<T>();
  T* pgx = gx.mutable_data<T>();
  for_rows(x, [=](int64_t r) HWY_ATTR {
    const hn::ScalableTag<T> d;
    const T* in = px + r * columns;
    const T* up = pg + r * columns;
    T* g = pgx + r * columns;  // first holds g, then gx
    const auto center = hn::Set(d, means ? means[r] : T{0}), scale = hn::Set(d, rstds[r]);
    const auto normal = [&](auto v) HWY_ATTR { return hn::Mul(hn::Sub(v, center), scale); };
    const double sum = w ? MapSum(
                               d, columns, g, [](auto v, auto u) HWY_ATTR { return hn::Mul(v, u); }, up, w)
                         : MapSum(
                               d, columns, g, [](auto v) HWY_ATTR { return v; }, up);
    const double dot = Sum(
        d, columns, [&](auto v, auto u) HWY_ATTR { return hn::Mul(normal(v), u); }, in, g);
    const auto mean_g = hn::Set(d, means ? static_cast<T>(sum / static_cast<double>(columns)) : T{0});
    const auto mean_dot = hn::Set(d, static_cast<T>(dot / static_cast<double>(columns)));
    Map(
        d, columns, g,
        [&](auto v, auto u)
            HWY_ATTR { return hn::Mul(scale, hn::NegMulAdd(normal(v), mean_dot, hn::Sub(u, mean_g))); },
        in, g);
  });
}

// gweight = Σ_rows gy · x̂, gbias = Σ_rows gy: threads share the columns, so that every sum has one order.
template <class T>
void NormParameterGradients(const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& gy,
                            Tensor& gweight, Tensor& gbias) {
  constexpr int64_t kRows = 32;  // summed in T; these sums are summed in f64
  const int64_t rows = x.size(0), columns = x.size(1);
  const T* px = x.data<T>();
  const T* pg = gy.data<T>();
  const T* means = data_or_null<T>(mean);
  const T* rstds = rstd.data<T>();
  Tensor totals = Tensor::zeros({2, columns}, DType::f64, x.device());
  double* dots = totals.mutable_data<double>();
  double* sums = dots + columns;
  T* w = mutable_data_or_null<T>(gweight);
  T* b = mutable_data_or_null<T>(gbias);
  const hn::ScalableTag<T> d;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(rows, 1) / step);
  parallel_for((columns + step - 1) / step, grain, [=](int64_t first, int64_t last) HWY_ATTR {
    const int64_t end = std::min(columns, last * step);
    for (int64_t top = 0; top < rows; top += kRows) {
      const int64_t bottom = std::min(rows, top + kRows);
      for (int64_t c = first * step; c < end; c += step) {
        const int64_t width = std::min(step, columns - c);
        const auto load = [=](const T* p)
                              HWY_ATTR { return width == step ? hn::LoadU(d, p) : LoadTail(d, p, width); };
        auto dot = hn::Zero(d), sum = hn::Zero(d);
        for (int64_t r = top; r < bottom; ++r) {
          const auto g = load(pg + r * columns + c);
          const auto normal = hn::Mul(
              hn::Sub(load(px + r * columns + c), hn::Set(d, means ? means[r] : T{0})), hn::Set(d, rstds[r]));
          dot = hn::MulAdd(g, normal, dot);
          sum = hn::Add(sum, g);
        }
        HWY_ALIGN T lanes[2][hn::MaxLanes(d)];
        hn::Store(dot, d, lanes[0]);
        hn::Store(sum, d, lanes[1]);
        for (int64_t i = 0; i < width; ++i) {
          dots[c + i] += static_cast<double>(lanes[0][i]);
          sums[c + i] += static_cast<double>(lanes[1][i]);
        }
      }
    }
    for (int64_t c = first * step; c < end; ++c) {
      if (w) w[c] = static_cast<T>(dots[c]);
      if (b) b[c] = static_cast<T>(sums[c]);
    }
  });
}

template <class T>
void NormBackwardRows(const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                      const Tensor& gy, Tensor& gx, Tensor& gweight, Tensor& gbias) {
  if (gx.defined()) NormInputGradient<T>(x, weight, mean, rstd, gy, gx);
  if (gweight.defined() || gbias.defined()) NormParameterGradients<T>(x, mean, rstd, gy, gweight, gbias);
}

// Calls f with float or double.
template <class F>
void visit_wide(DType t, F&& f) {
  t == DType::f64 ? f(double()) : f(float());
}

void Softmax(const Tensor& x, bool log, Tensor& y) {
  visit_wide(x.dtype(), [&]<class T>(T) { SoftmaxRows<T>(x, log, y); });
}

void SoftmaxBackward(const Tensor& y, const Tensor& gy, bool log, Tensor& gx) {
  visit_wide(y.dtype(), [&]<class T>(T) { SoftmaxBackwardRows<T>(y, gy, log, gx); });
}

void Norm(bool centered, const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon, Tensor& y,
          Tensor& mean, Tensor& rstd) {
  visit_wide(x.dtype(), [&]<class T>(T) { NormRows<T>(centered, x, weight, bias, epsilon, y, mean, rstd); });
}

void NormBackward(const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                  const Tensor& gy, Tensor& gx, Tensor& gweight, Tensor& gbias) {
  visit_wide(x.dtype(),
             [&]<class T>(T) { NormBackwardRows<T>(x, weight, mean, rstd, gy, gx, gweight, gbias); });
}

}  // namespace tapehead::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

// ---- The contract: 16-bit tensors go through f32 copies

#if HWY_ONCE
namespace tapehead {

HWY_EXPORT(Softmax);
HWY_EXPORT(SoftmaxBackward);
HWY_EXPORT(Norm);
HWY_EXPORT(NormBackward);

// Calls run(in, out): of 16-bit tensors with f32 copies of `in`, and with f32 tensors whose results are
// then rounded into `out`.
template <size_t I, size_t O, class Run>
static void run_wide(std::array<Tensor, I> in, const std::array<Tensor*, O>& out, Run&& run) {
  const bool half = is_half(in[0].dtype());
  std::array<Tensor, O> results;
  for (size_t i = 0; i < O; ++i) {
    const Tensor& y = *out[i];
    results[i] = half && y.defined() ? Tensor(y.shape(), DType::f32, y.device()) : y;
  }
  for (Tensor& x : in) {
    if (half && x.defined()) x = x.to(DType::f32);
  }
  run(in, results);
  for (size_t i = 0; half && i < O; ++i) {
    if (out[i]->defined()) cpu_backend().copy(results[i], *out[i]);
  }
}

void CpuBackend::softmax(const Tensor& x, bool log, Tensor& y) {
  run_wide<1, 1>({x}, {&y}, [&](auto& in, auto& out) { HWY_DYNAMIC_DISPATCH(Softmax)(in[0], log, out[0]); });
}

void CpuBackend::softmax_backward(const Tensor& y, const Tensor& gy, bool log, Tensor& gx) {
  run_wide<2, 1>({y, gy}, {&gx}, [&](auto& in, auto& out) {
    HWY_DYNAMIC_DISPATCH(SoftmaxBackward)(in[0], in[1], log, out[0]);
  });
}

static void norm(bool centered, const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon,
                 Tensor& y, Tensor& mean, Tensor& rstd) {
  run_wide<3, 1>({x, weight, bias}, {&y}, [&](auto& in, auto& out) {
    HWY_DYNAMIC_DISPATCH(Norm)(centered, in[0], in[1], in[2], epsilon, out[0], mean, rstd);
  });
}

static void norm_backward(const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                          const Tensor& gy, Tensor& gx, Tensor& gweight, Tensor& gbias) {
  run_wide<3, 3>({x, weight, gy}, {&gx, &gweight, &gbias}, [&](auto& in, auto& out) {
    HWY_DYNAMIC_DISPATCH(NormBackward)(in[0], in[1], mean, rstd, in[2], out[0], out[1], out[2]);
  });
}

void CpuBackend::layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon,
                            Tensor& y, Tensor& mean, Tensor& rstd) {
  norm(true, x, weight, bias, epsilon, y, mean, rstd);
}

void CpuBackend::layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& mean,
                                     const Tensor& rstd, const Tensor& gy, Tensor& gx, Tensor& gweight,
                                     Tensor& gbias) {
  norm_backward(x, weight, mean, rstd, gy, gx, gweight, gbias);
}

void CpuBackend::rms_norm(const Tensor& x, const Tensor& weight, double epsilon, Tensor& y, Tensor& rrms) {
  Tensor no_mean;
  norm(false, x, weight, {}, epsilon, y, no_mean, rrms);
}

void CpuBackend::rms_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& rrms,
                                   const Tensor& gy, Tensor& gx, Tensor& gweight) {
  Tensor no_bias;
  norm_backward(x, weight, {}, rrms, gy, gx, gweight, no_bias);
}

}  // namespace tapehead
#endif  // HWY_ONCE
