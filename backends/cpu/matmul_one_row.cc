// Products of one row with a large matrix.
//
// Each element of b meets one multiply-add, so the memory's pace is all that counts: b is read in the order in
// which it lies, in a few streams at once, as the processor fetches ahead by itself. Measured (f32, two threads
// with AVX2): 0.8 to 0.9 of the pace of only reading b with columns of 768 and rows of 2304, 0.6 to 0.7 with
// rows of 768.
#include "tapehead/backends/cpu/matmul_one_row.h"

#include <algorithm>
#include <cstddef>

#include "tapehead/backends/cpu/convert.h"
#include "tapehead/backends/cpu/workspace.h"
#include "tapehead/core/parallel.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/matmul_one_row.cc"
#include "tapehead/backends/cpu/simd.h"
#include <hwy/foreach_target.h>
#include "tapehead/backends/cpu/simd_math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tapehead::HWY_NAMESPACE {

using F32 = hn::ScalableTag<float>;
using Scalar = hn::CappedTag<float, 1>;

// Lines of b that are read together, be they rows or columns.
constexpr int kTogether = 8;

// Lines of b, of f32, f16 or bf16, `step` elements apart and dense along themselves.
struct Lines {
  DType dtype;
  const std::byte* data;
  int64_t step;

  // Elements [begin, begin + n) of `count` lines from `first` on, as f32: where they lie, or in `wide`, which
  // holds count · n; and how far apart they are.
  std::pair<const float*, int64_t> as_f32(int64_t first, int64_t count, int64_t begin, int64_t n,
                                          float* wide) const {
    const std::byte* from = data + (first * step + begin) * size_of(dtype);
    if (dtype == DType::f32) return {reinterpret_cast<const float*>(from), step};
    for (int64_t i = 0; i < count; ++i)
      convert_run(dtype, from + i * step * size_of(dtype), DType::f32, wide + i * n, n);
    return {wide, n};
  }
};

// Calls f(first, count) for [begin, end) in groups of kTogether, and for what is left one by one.
template <class F>
void for_each_group(int64_t begin, int64_t end, F&& f) {
  for (; begin + kTogether <= end; begin += kTogether) f(begin, std::integral_constant<int, kTogether>());
  for (; begin < end; ++begin) f(begin, std::integral_constant<int, 1>());
}

// sums[i] += Σ_k a[k] · lines[i][k], i < R, k < K.
template <int R>
void AddDots(int64_t K, const float* a, const float* lines, int64_t step, float* sums) {
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<F32> s[R];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) s[i] = hn::Zero(d);
  int64_t k = 0;
  for (; k + lanes <= K; k += lanes) {
    const auto factor = hn::LoadU(d, a + k);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) s[i] = hn::MulAdd(factor, hn::LoadU(d, lines + i * step + k), s[i]);
  }
  for (int i = 0; i < R; ++i) {
    float sum = hn::GetLane(hn::SumOfLanes(d, s[i]));
    for (int64_t rest = k; rest < K; ++rest) sum += a[rest] * lines[i * step + rest];
    sums[i] += sum;
  }
}

// sums[n] += Σ_i a[i] · lines[i][n], i < R, n < N.
template <int R>
void AddLines(int64_t N, const float* a, const float* lines, int64_t step, float* sums) {
  const auto add = [&](auto d, int64_t begin, int64_t end) HWY_ATTR {
    hn::Vec<decltype(d)> factors[R];
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) factors[i] = hn::Set(d, a[i]);
    for (int64_t n = begin; n < end; n += static_cast<int64_t>(hn::Lanes(d))) {
      auto s = hn::LoadU(d, sums + n);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) s = hn::MulAdd(factors[i], hn::LoadU(d, lines + i * step + n), s);
      hn::StoreU(s, d, sums + n);
    }
  };
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(F32())), whole = N / lanes * lanes;
  add(F32(), 0, whole);
  add(Scalar(), whole, N);
}

// b's columns are dense, each a dot product's side.
void ByColumns(float alpha, const float* a, const Lines& columns, float beta, int64_t N, int64_t K,
               float* y) {
  constexpr int64_t kRun = 1024;  // of 8 columns: what is widened stays in the first-level cache
  parallel_for(N, 1, [&](int64_t begin, int64_t end) {
    Workspace<float> wide(columns.dtype == DType::f32 ? 0 : static_cast<size_t>(kTogether * kRun));
    for_each_group(begin, end, [&](int64_t n, auto count) {
      float sums[kTogether] = {};
      for (int64_t k = 0; k < K; k += kRun) {
        const int64_t run = std::min(kRun, K - k);
        const auto [lines, step] = columns.as_f32(n, count, k, run, wide.data());
        AddDots<count>(run, a + k, lines, step, sums);
      }
      for (int i = 0; i < count; ++i) y[n + i] = alpha * sums[i] + (beta == 0 ? 0 : beta * y[n + i]);
    });
  });
}

// b's rows are dense. Each thread has some of the columns, and goes down them.
void ByRows(float alpha, const float* a, const Lines& rows, float beta, int64_t N, int64_t K, float* y) {
  constexpr int64_t kRun = 128;    // rows that are summed before their sum is added: closer than one long sum
  constexpr int64_t kWide = 1024;  // columns of 8 rows: what is widened stays in the first-level cache
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(F32()));
  // Threads part at whole vectors: how an element is summed does not depend on where.
  parallel_for((N + lanes - 1) / lanes, 1, [&](int64_t first, int64_t last) {
    const int64_t begin = first * lanes, end = std::min(last * lanes, N);
    const bool narrow = rows.dtype != DType::f32;
    const int64_t width = narrow ? std::min(kWide, end - begin) : end - begin;
    Workspace<float> sums(static_cast<size_t>(end - begin)),
        wide(narrow ? static_cast<size_t>(kTogether * width) : 0);
    for (int64_t n = begin; n < end; ++n) y[n] = beta == 0 ? 0 : beta * y[n];
    for (int64_t run = 0; run < K; run += kRun) {
      std::fill(sums.begin(), sums.end(), 0.f);
      for_each_group(run, std::min(run + kRun, K), [&](int64_t k, auto count) {
        for (int64_t n = begin; n < end; n += width) {
          const int64_t columns = std::min(width, end - n);
          const auto [lines, step] = rows.as_f32(k, count, n, columns, wide.data());
          AddLines<count>(columns, a + k, lines, step, sums.data() + (n - begin));
        }
      });
      for (int64_t n = begin; n < end; ++n) y[n] += alpha * sums[static_cast<size_t>(n - begin)];
    }
  });
}

void OneRow(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& y) {
  const int64_t N = y.size(1), K = a.size(1);
  Workspace<float> wide(static_cast<size_t>(K));
  convert_run(a.dtype(), a.raw_data(), DType::f32, wide.data(), K);
  const bool by_rows = b.strides()[1] == 1;
  const Lines lines = {b.dtype(), static_cast<const std::byte*>(b.raw_data()), b.strides()[by_rows ? 0 : 1]};
  (by_rows ? ByRows : ByColumns)(static_cast<float>(alpha), wide.data(), lines, static_cast<float>(beta), N,
                                 K, y.mutable_data<float>());
}

}  // namespace tapehead::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tapehead {

HWY_EXPORT(OneRow);

bool matmul_one_row(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& y) {
  const auto up_to_32_bits = [](const Tensor& x) { return x.dtype() == DType::f32 || is_half(x.dtype()); };
  if (!up_to_32_bits(a) || !up_to_32_bits(b) || y.dtype() != DType::f32 || y.dim() != 2 || y.size(0) != 1)
    return false;
  const int64_t N = y.size(1), K = a.size(1);
  const auto dense = [](const Tensor& x) { return x.size(1) == 1 || x.strides()[1] == 1; };
  if (!dense(a) || !dense(y) || !(b.strides()[0] == 1 || b.strides()[1] == 1)) return false;
  if (K * N < kGrain || alpha == 0) return false;
  HWY_DYNAMIC_DISPATCH(OneRow)(alpha, a, b, beta, y);
  return true;
}

}  // namespace tapehead
#endif  // HWY_ONCE
