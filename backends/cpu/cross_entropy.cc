// The row pass of cross entropy: a row is read once for its loss, in blocks that stay in the first-level
// cache, and once more for its gradient, which may overwrite it.
//
// Sums over classes run in f64 across blocks and in lanes of the arithmetic's type W (f32, or f64 for f64)
// inside one.
#include <cmath>
#include <limits>

#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/backends/cpu/parallel.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/cross_entropy.cc"
#include "tapehead/backends/cpu/simd.h"
#include <hwy/foreach_target.h>
#include "tapehead/backends/cpu/simd_math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tapehead::HWY_NAMESPACE {

// Elements of a block: whole vectors on every target, and few enough that all of a block's buffers fit the
// cache.
constexpr int64_t kBlock = 512;

// One row's inputs, each read as W whatever its element type.
template <class W, class L, class T>
struct Row {
  const L* logits;
  const T* bias;         // or null
  const T* weight;       // or null
  const T* probability;  // or null: then `target` is the class
  int64_t target;
  int64_t C;
  double smoothing;

  // What multiplies -log p_c apart from the target class's own share: nothing at all for plain indices.
  bool has_factors() const { return probability || smoothing > 0; }
  double target_factor() const {
    return probability ? 0
                       : (1 - smoothing) *
                             (weight ? static_cast<double>(static_cast<wide_t<T>>(weight[target])) : 1.0);
  }

  W z(int64_t c) const { return static_cast<W>(logits[c]) + (bias ? static_cast<W>(bias[c]) : W{0}); }

  // z of classes [begin, begin + n), followed by -inf up to whole vectors: padding that adds nothing to any
  // sum.
  void stage_z(int64_t begin, int64_t n, int64_t padded, W* HWY_RESTRICT out) const {
    const L* in = logits + begin;
    if (bias) {
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<W>(in[i]) + static_cast<W>(bias[begin + i]);
    } else {
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<W>(in[i]);
    }
    for (int64_t i = n; i < padded; ++i) out[i] = -std::numeric_limits<W>::infinity();
  }

  W factor(int64_t c) const {
    const W uniform = static_cast<W>(smoothing / static_cast<double>(C));
    const W f =
        probability ? static_cast<W>(1 - smoothing) * static_cast<W>(probability[c]) + uniform : uniform;
    return weight ? f * static_cast<W>(weight[c]) : f;
  }

  void stage_factors(int64_t begin, int64_t n, int64_t padded, W* HWY_RESTRICT out) const {
    for (int64_t i = 0; i < n; ++i) out[i] = factor(begin + i);
    for (int64_t i = n; i < padded; ++i) out[i] = 0;
  }
};

// What the first reading of a row finds. `reference` is the row's maximum, or 0 if that is -inf. The target
// class is kept apart from the other classes, so that a confident row's 1 - p and log(1 + others) keep all
// their digits.
template <class W>
struct RowSums {
  W reference = 0;
  double others = 0;      // Σ exp(z_c - reference) without the target class
  double target = 0;      // exp(z_t - reference); 0 for probabilities
  double factor_sum = 0;  // Σ a_c, the factors
  double factor_dot = 0;  // Σ a_c · (z_c - reference), factors of 0 left out

  double exp_sum() const { return others + target; }
  double log_sum() const { return target == 1 ? std::log1p(others) : std::log(exp_sum()); }
};

template <class W>
void AddFactors(const W* HWY_RESTRICT z, const W* HWY_RESTRICT a, int64_t padded, RowSums<W>& sums) {
  const hn::ScalableTag<W> d;
  const auto reference = hn::Set(d, sums.reference);
  auto sum = hn::Zero(d);
  auto dot = hn::Zero(d);
  for (int64_t i = 0; i < padded; i += static_cast<int64_t>(hn::Lanes(d))) {
    const auto f = hn::Load(d, a + i);
    const auto product = hn::Mul(f, hn::Sub(hn::Load(d, z + i), reference));
    sum = hn::Add(sum, f);
    dot = hn::Add(dot, hn::IfThenZeroElse(hn::Eq(f, hn::Zero(d)), product));
  }
  sums.factor_sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
  sums.factor_dot += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, dot)));
}

template <class W, class L, class T>
RowSums<W> ReadRow(const Row<W, L, T>& row) {
  const hn::ScalableTag<W> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN W z[kBlock];
  HWY_ALIGN W a[kBlock];
  RowSums<W> sums;
  W largest = -std::numeric_limits<W>::infinity();
  for (int64_t begin = 0; begin < row.C; begin += kBlock) {
    const int64_t n = std::min(kBlock, row.C - begin);
    const int64_t padded = (n + lanes - 1) / lanes * lanes;
    row.stage_z(begin, n, padded, z);

    auto block_max = hn::Set(d, -std::numeric_limits<W>::infinity());
    for (int64_t i = 0; i < padded; i += lanes) block_max = hn::Max(block_max, hn::Load(d, z + i));
    const W m = hn::GetLane(hn::MaxOfLanes(d, block_max));
    if (m > largest) {
      // What was summed against the old reference is moved to the new one.
      if (begin > 0) {
        const double step = static_cast<double>(m) - static_cast<double>(sums.reference);
        sums.others *= std::exp(-step);
        if (sums.factor_sum != 0) sums.factor_dot -= sums.factor_sum * step;
      }
      largest = m;
      sums.reference = m;
    }

    if (row.has_factors()) {
      row.stage_factors(begin, n, padded, a);
      AddFactors(z, a, padded, sums);
    }
    if (!row.probability && begin <= row.target && row.target < begin + n) {
      z[row.target - begin] = -std::numeric_limits<W>::infinity();
    }
    const auto reference = hn::Set(d, sums.reference);
    auto exp_sum = hn::Zero(d);
    for (int64_t i = 0; i < padded; i += lanes) {
      exp_sum = hn::Add(exp_sum, Exp(d, hn::Sub(hn::Load(d, z + i), reference)));
    }
    sums.others += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, exp_sum)));
  }
  if (!row.probability) {
    sums.target = std::exp(static_cast<double>(row.z(row.target)) - static_cast<double>(sums.reference));
  }
  return sums;
}

// gradient_c = scale · ((Σ a + b) · p_c - a_c), b the target's own factor, which is taken off class `target`
// at the end.
template <class W, class L, class T, class G>
void WriteGradient(const Row<W, L, T>& row, const RowSums<W>& sums, double scale, G* gradient) {
  const hn::ScalableTag<W> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN W z[kBlock];
  HWY_ALIGN W a[kBlock];
  HWY_ALIGN W g[kBlock];
  const double b = row.target_factor();

  double at_target = 0;
  if (!row.probability) {
    const double own = row.has_factors() ? static_cast<double>(row.factor(row.target)) : 0;
    at_target = scale * ((sums.factor_sum * sums.target - b * sums.others) / sums.exp_sum() - own);
  }

  const auto reference = hn::Set(d, sums.reference);
  const auto of_p = hn::Set(d, static_cast<W>(scale * (sums.factor_sum + b) / sums.exp_sum()));
  const auto of_factor = hn::Set(d, static_cast<W>(-scale));
  for (int64_t begin = 0; begin < row.C; begin += kBlock) {
    const int64_t n = std::min(kBlock, row.C - begin);
    const int64_t padded = (n + lanes - 1) / lanes * lanes;
    row.stage_z(begin, n, padded, z);
    for (int64_t i = 0; i < padded; i += lanes) {
      hn::Store(hn::Mul(of_p, Exp(d, hn::Sub(hn::Load(d, z + i), reference))), d, g + i);
    }
    if (row.has_factors()) {
      row.stage_factors(begin, n, padded, a);
      for (int64_t i = 0; i < padded; i += lanes) {
        hn::Store(hn::MulAdd(of_factor, hn::Load(d, a + i), hn::Load(d, g + i)), d, g + i);
      }
    }
    for (int64_t i = 0; i < n; ++i) gradient[begin + i] = static_cast<G>(g[i]);
  }
  if (!row.probability) gradient[row.target] = static_cast<G>(at_target);
}

template <class L, class T, class G>
void CrossEntropy(const CrossEntropyRows& rows) {
  using W = wide_t<L>;
  const int64_t R = rows.logits.size(0), C = rows.logits.size(1);
  const auto pointer = []<class E>(const Tensor& x, std::type_identity<E>) {
    return x.defined() ? x.data<E>() : nullptr;
  };
  const auto writable = []<class E>(Tensor x, std::type_identity<E>) {
    return x.defined() ? x.mutable_data<E>() : nullptr;
  };
  const auto row_stride = [](const Tensor& x) { return x.defined() ? x.strides()[0] : 0; };
  constexpr std::type_identity<T> element;
  const L* logits = pointer(rows.logits, std::type_identity<L>());
  const T* bias = pointer(rows.bias, element);
  const T* weight = pointer(rows.class_weight, element);
  const T* probability = pointer(rows.target_probability, element);
  const int64_t* target = pointer(rows.target_index, std::type_identity<int64_t>());
  const double* row_scale = pointer(rows.row_scale, std::type_identity<double>());
  double* loss = writable(rows.loss, std::type_identity<double>());
  G* gradient = writable(rows.gradient, std::type_identity<G>());
  T* target_gradient = writable(rows.target_gradient, element);
  const int64_t logits_stride = row_stride(rows.logits),
                probability_stride = row_stride(rows.target_probability);
  const int64_t gradient_stride = row_stride(rows.gradient);

  parallel_for(R, std::max<int64_t>(kGrain / 8 / C, 1), [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const Row<W, L, T> row = {.logits = logits + r * logits_stride,
                                .bias = bias,
                                .weight = weight,
                                .probability = probability ? probability + r * probability_stride : nullptr,
                                .target = target ? target[r] : 0,
                                .C = C,
                                .smoothing = rows.label_smoothing};
      const double scale = row_scale ? row_scale[r] : 1;
      if (scale == 0) {
        if (loss) loss[r] = 0;
        if (gradient) std::fill_n(gradient + r * gradient_stride, C, G{});
        if (target_gradient) std::fill_n(target_gradient + r * C, C, T{});
        continue;
      }
      const RowSums<W> sums = ReadRow(row);
      const double log_sum = sums.log_sum();
      if (loss) {
        double value = 0;
        if (row.has_factors() && sums.factor_sum != 0) value += sums.factor_sum * log_sum - sums.factor_dot;
        if (const double b = row.target_factor(); !row.probability && b != 0) {
          value +=
              b * (log_sum - (static_cast<double>(row.z(row.target)) - static_cast<double>(sums.reference)));
        }
        // A NaN among logits that the formula does not ask for (a weight of 0) still poisons its row.
        if (std::isnan(log_sum)) value = log_sum;
        loss[r] = scale * value;
      }
      if (target_gradient) {
        for (int64_t c = 0; c < C; ++c) {
          const double log_p = static_cast<double>(row.z(c)) - static_cast<double>(sums.reference) - log_sum;
          const double w = weight ? static_cast<double>(static_cast<wide_t<T>>(weight[c])) : 1;
          target_gradient[r * C + c] = static_cast<T>(-scale * (1 - row.smoothing) * w * log_p);
        }
      }
      if (gradient) WriteGradient(row, sums, scale, gradient + r * gradient_stride);
    }
  });
}

// Logits and gradient are in the input's own type T, or in f32 where that is f16 or bf16.
void CrossEntropyAnyType(const CrossEntropyRows& rows) {
  const DType L = rows.logits.dtype();
  DType T = L;
  for (const Tensor& x : {rows.bias, rows.class_weight, rows.target_probability}) {
    if (x.defined()) T = x.dtype();
  }
  const DType G = rows.gradient.defined() ? rows.gradient.dtype() : L;
  const auto is = [&](DType l, DType t, DType g) { return L == l && T == t && G == g; };
  if (is(DType::f64, DType::f64, DType::f64)) return CrossEntropy<double, double, double>(rows);
  if (is(DType::f32, DType::f32, DType::f32)) return CrossEntropy<float, float, float>(rows);
  fail<TypeError>("[cross_entropy] logits of {} with tensors of {} and a gradient of {}", L, T, G);
}

}  // namespace tapehead::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tapehead {

HWY_EXPORT(CrossEntropyAnyType);

void CpuBackend::cross_entropy_rows(const CrossEntropyRows& rows) {
  if (rows.logits.numel() > 0) HWY_DYNAMIC_DISPATCH(CrossEntropyAnyType)(rows);
}

}  // namespace tapehead
#endif  // HWY_ONCE
