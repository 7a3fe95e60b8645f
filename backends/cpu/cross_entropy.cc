// The row pass of cross entropy: a row is read once for its loss, in blocks that stay in the first-level
// cache, and once more for its gradient, which may overwrite it.
//
// Blocks are staged as W, the arithmetic's type (f32, or f64 for f64), whatever they are stored as. Sums over
// classes run in lanes of W inside a block and in f64 across blocks.
#include <cmath>
#include <limits>

#include "tapehead/backends/cpu/convert.h"
#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/backends/row_sums.h"
#include "tapehead/core/parallel.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/cross_entropy.cc"
#include "tapehead/backends/cpu/simd.h"
#include <hwy/foreach_target.h>
#include "tapehead/backends/cpu/simd_math-inl.h"
#include "tapehead/backends/cpu/gradient_filter-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tapehead::HWY_NAMESPACE {

// A run of floating elements of any dtype; null where the tensor is undefined.
struct Run {
  const void* data = nullptr;
  DType dtype = DType::f32;

  // Row `row` of x; or of a vector, itself.
  static Run of(const Tensor& x, int64_t row = 0) {
    if (!x.defined()) return {};
    const int64_t offset = x.dim() == 2 ? row * x.strides()[0] : 0;
    return {static_cast<const char*>(x.raw_data()) + offset * size_of(x.dtype()), x.dtype()};
  }
  explicit operator bool() const { return data != nullptr; }

  template <class W>
  void read(int64_t begin, int64_t n, W* out) const {
    convert_run(dtype, static_cast<const char*>(data) + begin * size_of(dtype), dtype_of<W>(), out, n);
  }
  template <class W>
  W at(int64_t i) const {
    W value;
    read(i, 1, &value);
    return value;
  }
};

struct MutableRun {
  void* data = nullptr;
  DType dtype = DType::f32;

  template <class W>
  void write(int64_t begin, int64_t n, const W* in) const {
    convert_run(dtype_of<W>(), in, dtype, static_cast<char*>(data) + begin * size_of(dtype), n);
  }
};

// One row's inputs.
template <class W>
struct Row {
  Run logits, bias, weight, probability;
  int64_t target = -1;  // class index; -1 with probabilities
  int64_t C = 0;
  double smoothing = 0, logit_scale = 1, softcap = 0;

  // Whether classes other than the target have a factor before -log p_c.
  bool has_factors() const { return probability || smoothing > 0; }
  // The target's own factor, beside what all classes have.
  double target_factor() const {
    return target < 0 ? 0
                      : (1 - smoothing) * (weight ? static_cast<double>(weight.template at<W>(target)) : 1.0);
  }

  // z of classes [begin, begin + n), followed by -inf up to whole vectors: padding that adds nothing to any
  // sum.
  void stage_z(int64_t begin, int64_t n, int64_t padded, W* HWY_RESTRICT z, W* HWY_RESTRICT scratch) const {
    const hn::ScalableTag<W> d;
    logits.read(begin, n, z);
    if (bias) {
      bias.read(begin, n, scratch);
      for (int64_t i = 0; i < n; ++i) z[i] += scratch[i];
    }
    if (logit_scale != 1) {
      for (int64_t i = 0; i < n; ++i) z[i] *= static_cast<W>(logit_scale);
    }
    if (softcap > 0) {
      const auto cap = hn::Set(d, static_cast<W>(softcap)), inverse = hn::Set(d, static_cast<W>(1 / softcap));
      Map(
          d, n, z, [&](auto u) HWY_ATTR { return hn::Mul(cap, Tanh(d, hn::Mul(u, inverse))); }, z);
    }
    std::fill(z + n, z + padded, -std::numeric_limits<W>::infinity());
  }

  // The same to read alone: where the logits lie, if they are z already.
  const W* read_z(int64_t begin, int64_t n, int64_t padded, W* HWY_RESTRICT z,
                  W* HWY_RESTRICT scratch) const {
    if (logits.dtype == dtype_of<W>() && !bias && logit_scale == 1 && softcap <= 0 && n == padded)
      return static_cast<const W*>(logits.data) + begin;
    stage_z(begin, n, padded, z, scratch);
    return z;
  }

  // The factors a_c = w_c · ((1 - e) · q_c + e / C) of those classes, followed by 0.
  void stage_factors(int64_t begin, int64_t n, int64_t padded, W* HWY_RESTRICT a,
                     W* HWY_RESTRICT scratch) const {
    const W uniform = static_cast<W>(smoothing / static_cast<double>(C));
    if (probability) {
      probability.read(begin, n, a);
      for (int64_t i = 0; i < n; ++i) a[i] = static_cast<W>(1 - smoothing) * a[i] + uniform;
    } else {
      std::fill_n(a, n, uniform);
    }
    if (weight) {
      weight.read(begin, n, scratch);
      for (int64_t i = 0; i < n; ++i) a[i] *= scratch[i];
    }
    std::fill(a + n, a + padded, W{0});
  }

  W factor(int64_t c) const {
    HWY_ALIGN W a[1], scratch[1];
    stage_factors(c, 1, 1, a, scratch);
    return a[0];
  }
};

// Σ f_i and Σ f_i · (z_i - reference), where f_i is not 0, added to `sum` and `dot`.
template <class W>
void AddWeighted(const W* HWY_RESTRICT f, const W* HWY_RESTRICT z, W reference, int64_t padded, double& sum,
                 double& dot) {
  const hn::ScalableTag<W> d;
  const auto r = hn::Set(d, reference);
  auto s = hn::Zero(d), t = hn::Zero(d);
  for (int64_t i = 0; i < padded; i += static_cast<int64_t>(hn::Lanes(d))) {
    const auto v = hn::Load(d, f + i);
    s = hn::Add(s, v);
    t = hn::Add(t, hn::IfThenZeroElse(hn::Eq(v, hn::Zero(d)), hn::Mul(v, hn::Sub(hn::LoadU(d, z + i), r))));
  }
  sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, s)));
  dot += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, t)));
}

template <class W>
RowSums<W> ReadRow(const Row<W>& row, bool entropy) {
  const hn::ScalableTag<W> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr W kLowest = -std::numeric_limits<W>::infinity();
  HWY_ALIGN W staged[kRowBlock], a[kRowBlock], scratch[kRowBlock];
  RowSums<W> sums;
  W largest = kLowest, z_target = 0;
  for (int64_t begin = 0; begin < row.C; begin += kRowBlock) {
    const int64_t n = std::min(kRowBlock, row.C - begin);
    const int64_t padded = (n + lanes - 1) / lanes * lanes;
    const bool has_target = begin <= row.target && row.target < begin + n;
    const W* z = staged;
    if (has_target) {
      row.stage_z(begin, n, padded, staged, scratch);
    } else {
      z = row.read_z(begin, n, padded, staged, scratch);
    }

    auto block_max = hn::Set(d, kLowest);
    for (int64_t i = 0; i < padded; i += lanes) block_max = hn::Max(block_max, hn::LoadU(d, z + i));
    const W m = hn::GetLane(hn::MaxOfLanes(d, block_max));
    if (m > largest) {
      if (largest > kLowest) sums.move_reference(m);  // else the sums are of nothing yet
      sums.reference = largest = m;
      sums.first_largest = begin + (std::find(z, z + n, m) - z);
    }
    if (row.has_factors()) {
      row.stage_factors(begin, n, padded, a, scratch);
      AddWeighted(a, z, sums.reference, padded, sums.factor_sum, sums.factor_dot);
    }
    if (has_target) z_target = std::exchange(staged[row.target - begin], kLowest);

    const auto reference = hn::Set(d, sums.reference);
    if (!entropy) {
      auto others = hn::Zero(d);
      for (int64_t i = 0; i < padded; i += lanes)
        others = hn::Add(others, Exp(d, hn::Sub(hn::LoadU(d, z + i), reference)));
      sums.others += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, others)));
    } else {
      for (int64_t i = 0; i < padded; i += lanes)
        hn::Store(Exp(d, hn::Sub(hn::LoadU(d, z + i), reference)), d, a + i);
      AddWeighted(a, z, sums.reference, padded, sums.others, sums.exp_dot);
    }
  }
  if (row.target >= 0) sums.add_target(z_target);
  return sums;
}

// What a row's gradient is written to.
struct GradientOutput {
  MutableRun dense;
  double unit = 1;                  // of `dense`
  double* own = nullptr;            // takes the target's entry
  double* filtered_mass = nullptr;  // what the filter found below its level
};

template <class W>
void WriteGradient(const Row<W>& row, const RowSums<W>& sums, double scale, double z_scale,
                   const RowFilter<W>& filter, const GradientOutput& out) {
  const hn::ScalableTag<W> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN W staged[kRowBlock], a[kRowBlock], g[kRowBlock], scratch[kRowBlock];
  const GradientFactors f(sums, row.target_factor(), scale, z_scale);
  const double inverse_cap = row.softcap > 0 ? 1 / row.softcap : 0;

  const auto reference = hn::Set(d, sums.reference);
  const auto of_p = hn::Set(d, static_cast<W>(f.of_p / sums.exp_sum()));
  const auto of_factor = hn::Set(d, static_cast<W>(-scale));
  const auto cap = hn::Set(d, static_cast<W>(inverse_cap)),
             of_z = hn::Set(d, static_cast<W>(row.logit_scale / out.unit));
  double filtered = 0;
  for (int64_t begin = 0; begin < row.C; begin += kRowBlock) {
    const int64_t n = std::min(kRowBlock, row.C - begin);
    const int64_t padded = (n + lanes - 1) / lanes * lanes;
    const W* z = row.read_z(begin, n, padded, staged, scratch);
    const bool has_target = begin <= row.target && row.target < begin + n;
    if (filter) {
      for (int64_t i = 0; i < padded; i += lanes)
        hn::Store(Exp(d, hn::Sub(hn::LoadU(d, z + i), reference)), d, a + i);
      if (has_target) a[row.target - begin] = 0;
      std::fill_n(g, padded, W{0});
      filtered += filter.choose(
          begin, padded, [&](int64_t i) HWY_ATTR { return hn::Load(d, a + i); },
          [&](int64_t i, W e) { g[i] = e; });
      for (int64_t i = 0; i < padded; i += lanes) hn::Store(hn::Mul(of_p, hn::Load(d, g + i)), d, g + i);
    } else {
      for (int64_t i = 0; i < padded; i += lanes)
        hn::Store(hn::Mul(of_p, Exp(d, hn::Sub(hn::LoadU(d, z + i), reference))), d, g + i);
    }
    if (row.has_factors()) {
      row.stage_factors(begin, n, padded, a, scratch);
      for (int64_t i = 0; i < padded; i += lanes) {
        hn::Store(hn::MulAdd(of_factor, hn::Load(d, a + i), hn::Load(d, g + i)), d, g + i);
      }
    }
    if (has_target) {
      const double own = row.has_factors() ? static_cast<double>(row.factor(row.target)) : 0;
      g[row.target - begin] = static_cast<W>(f.at_target(sums, own));
    }
    if (row.softcap > 0) {  // softcap_slope(), by a factor in the place of a division
      for (int64_t i = 0; i < padded; i += lanes) {
        const auto t = hn::Mul(hn::LoadU(d, z + i), cap);
        hn::Store(hn::Mul(hn::Load(d, g + i), hn::NegMulAdd(t, t, hn::Set(d, W{1}))), d, g + i);
      }
    }
    if (row.logit_scale / out.unit != 1) {
      for (int64_t i = 0; i < padded; i += lanes) hn::Store(hn::Mul(of_z, hn::Load(d, g + i)), d, g + i);
    }
    if (out.own && has_target)
      *out.own = out.unit * static_cast<double>(std::exchange(g[row.target - begin], W{0}));
    out.dense.write(begin, n, g);
  }
  if (out.filtered_mass) *out.filtered_mass = filtered / sums.exp_sum();
}

// The entries that the filter leaves, without the part -scale · a_c that all classes have.
template <class W>
void WriteSparseGradient(const Row<W>& row, const RowSums<W>& sums, double scale, double z_scale,
                         const RowFilter<W>& filter, SparseRun<W>& out, double* filtered_mass) {
  const hn::ScalableTag<W> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN W staged[kRowBlock], scratch[kRowBlock];
  const GradientFactors f(sums, row.target_factor(), scale, z_scale);
  const W of_p = static_cast<W>(f.of_p / sums.exp_sum() * row.logit_scale);
  const W cap = static_cast<W>(row.softcap);

  const auto reference = hn::Set(d, sums.reference);
  double filtered = 0;
  for (int64_t begin = 0; begin < row.C; begin += kRowBlock) {
    const int64_t n = std::min(kRowBlock, row.C - begin);
    const int64_t padded = (n + lanes - 1) / lanes * lanes;
    const W* z = row.read_z(begin, n, padded, staged, scratch);
    const int64_t target = row.target - begin;
    filtered += filter.choose(
        begin, padded,
        [&](int64_t i) HWY_ATTR {
          const auto e = Exp(d, hn::Sub(hn::LoadU(d, z + i), reference));
          if (target < i || target >= i + lanes) return e;
          const auto lane = hn::Iota(d, static_cast<W>(0));
          return hn::IfThenZeroElse(hn::Eq(lane, hn::Set(d, static_cast<W>(target - i))), e);
        },
        [&](int64_t i, W e) { out.add(begin + i, of_p * e * softcap_slope(z[i], cap)); });
  }
  const double own = f.at_target(sums, 0) * row.logit_scale;
  out.add(row.target, static_cast<W>(own) * softcap_slope(sums.z_target, cap));
  if (filtered_mass) *filtered_mass = filtered / sums.exp_sum();
}

// d loss / d q_c = -scale · (1 - e) · w_c · log p_c.
template <class W>
void WriteTargetGradient(const Row<W>& row, const RowSums<W>& sums, double scale, MutableRun gradient) {
  HWY_ALIGN W z[kRowBlock], w[kRowBlock], g[kRowBlock], scratch[kRowBlock];
  const double lse = sums.lse();
  for (int64_t begin = 0; begin < row.C; begin += kRowBlock) {
    const int64_t n = std::min(kRowBlock, row.C - begin);
    row.stage_z(begin, n, n, z, scratch);
    if (row.weight) row.weight.read(begin, n, w);
    for (int64_t i = 0; i < n; ++i) {
      const double weight = row.weight ? static_cast<double>(w[i]) : 1;
      g[i] = static_cast<W>(-scale * (1 - row.smoothing) * weight * (static_cast<double>(z[i]) - lse));
    }
    gradient.write(begin, n, g);
  }
}

template <class W>
void CrossEntropy(const CrossEntropyRows& rows) {
  const int64_t R = rows.logits.size(0), C = rows.logits.size(1);
  const auto read = [](const Tensor& x) { return x.defined() ? x.data<double>() : nullptr; };
  const auto write = [](Tensor x) { return x.defined() ? x.mutable_data<double>() : nullptr; };
  const auto write_row = [](const Tensor& x, int64_t row) {
    return MutableRun{const_cast<void*>(Run::of(x, row).data), x.dtype()};
  };
  const double* row_scale = read(rows.row_scale);
  const double* z_row_scale = rows.z_loss > 0 ? read(rows.z_row_scale) : nullptr;
  double* loss = write(rows.loss);
  double* lse = write(rows.lse);
  double* target_logprob = write(rows.target_logprob);
  double* entropy = write(rows.entropy);
  double* own_gradient = write(rows.own_gradient);
  double* filtered_mass = write(rows.filtered_mass);
  const auto integers = [](const Tensor& x) { return x.defined() ? x.data<int64_t>() : nullptr; };
  const int64_t* target = integers(rows.target_index);
  const int64_t* filter_row = integers(rows.filter_row);
  const bool sparse = rows.sparse_gradient.count.defined();
  int64_t* sparse_count = nullptr;
  int32_t* sparse_index = nullptr;
  W* sparse_value = nullptr;
  int64_t capacity = 0;
  if (sparse) {
    sparse_count = Tensor(rows.sparse_gradient.count).mutable_data<int64_t>();
    sparse_index = Tensor(rows.sparse_gradient.index).mutable_data<int32_t>();
    sparse_value = Tensor(rows.sparse_gradient.value).mutable_data<W>();
    capacity = rows.sparse_gradient.index.size(1);
  }
  int64_t* correct = rows.correct.defined() ? Tensor(rows.correct).mutable_data<int64_t>() : nullptr;
  for (Tensor x : {rows.gradient, rows.target_gradient}) {
    if (x.defined()) x.bump_version();
  }

  parallel_for(R, std::max<int64_t>(kGrain / 8 / C, 1), [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const double scale = row_scale[r];
      const double z_scale = z_row_scale ? rows.z_loss * z_row_scale[r] : 0;
      if (scale == 0 && z_scale == 0) {
        HWY_ALIGN const W zeros[kRowBlock] = {};
        if (loss) loss[r] = 0;
        if (own_gradient) own_gradient[r] = 0;
        if (filtered_mass) filtered_mass[r] = 0;
        if (sparse) sparse_count[r] = 0;
        for (const Tensor& x : {rows.gradient, rows.target_gradient}) {
          for (int64_t c = 0; x.defined() && c < C; c += kRowBlock)
            write_row(x, r).write(c, std::min(kRowBlock, C - c), zeros);
        }
        continue;
      }
      Row<W> row;
      row.logits = Run::of(rows.logits, r);
      row.bias = Run::of(rows.bias);
      row.weight = Run::of(rows.class_weight);
      row.probability = Run::of(rows.target_probability, r);
      row.target = target ? target[r] : -1;
      row.C = C;
      row.smoothing = rows.label_smoothing;
      row.logit_scale = rows.logit_scale;
      row.softcap = rows.softcap;

      const RowSums<W> sums = ReadRow(row, entropy != nullptr);
      const RowStatistics of_row(sums);
      if (loss) loss[r] = of_row.loss(sums, row.target_factor(), scale, z_scale);
      if (lse) lse[r] = of_row.lse();
      if (target_logprob) target_logprob[r] = of_row.log_p_target;
      if (entropy) entropy[r] = of_row.entropy(sums);
      if (correct) correct[r] = sums.first_largest == row.target;
      if (rows.target_gradient.defined())
        WriteTargetGradient(row, sums, scale, write_row(rows.target_gradient, r));
      if (!rows.gradient.defined() && !sparse) continue;
      RowFilter<W> filter;
      filter.kind = rows.filter.kind;
      if (filter) {
        filter.level = static_cast<W>(rows.filter.level * sums.exp_sum());
        filter.seed = rows.filter_seed;
        filter.first =
            rows.filter_first + static_cast<uint64_t>((filter_row ? filter_row[r] : r) * filter_blocks(C));
      }
      double* mass = filtered_mass ? filtered_mass + r : nullptr;
      if (sparse) {
        SparseRun<W> out = {sparse_index + r * capacity, sparse_value + r * capacity, capacity};
        WriteSparseGradient(row, sums, scale, z_scale, filter, out, mass);
        sparse_count[r] = out.count;
      } else {
        WriteGradient(row, sums, scale, z_scale, filter,
                      {.dense = write_row(rows.gradient, r),
                       .unit = rows.gradient_unit,
                       .own = own_gradient ? own_gradient + r : nullptr,
                       .filtered_mass = mass});
      }
    }
  });
}

void CrossEntropyAnyType(const CrossEntropyRows& rows) {
  rows.logits.dtype() == DType::f64 ? CrossEntropy<double>(rows) : CrossEntropy<float>(rows);
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
