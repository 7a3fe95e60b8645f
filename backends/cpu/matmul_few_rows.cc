// Products of few rows with a large matrix.
//
// Libraries pack both matrices before they multiply: the price of one pass over b, which hundreds of rows
// share. A few cannot, and meet it again at every chunk of a head and at every token that a model generates.
// Here b's part of a tile comes straight into the first-level cache, widened on the way if it has 16 bits,
// and its next lines are fetched meanwhile.
//
// Measured beside oneDNN (768 features, 50257 columns, f32, two threads with AVX-512), logits and input
// gradient: 1.4 and 1.2 times as fast at 16 rows, 0.9 and 0.7 at 64. With operands of bf16, beside widening
// panels for oneDNN, no slower up to 128. The weight gradient, whose inner dimension is the few rows, gains
// nothing.
#include "tapehead/backends/cpu/matmul_few_rows.h"

#include <algorithm>
#include <cstddef>

#include "tapehead/backends/cpu/convert.h"
#include "tapehead/backends/cpu/matmul_one_row.h"
#include "tapehead/backends/cpu/workspace.h"
#include "tapehead/core/parallel.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/matmul_few_rows.cc"
#include "tapehead/backends/cpu/simd.h"
#include <hwy/foreach_target.h>
#include "tapehead/backends/cpu/simd_math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tapehead::HWY_NAMESPACE {

using F32 = hn::ScalableTag<float>;
using Vector = hn::Vec<F32>;

// A tile's sums stay in registers: kTileRows x 2 vectors, of 32 registers with AVX-512 and of 16 otherwise.
constexpr int kTileRows = HWY_TARGET <= HWY_AVX3 ? 12 : 6;
constexpr int kMostVectors = 2;
// Products are summed in runs of so many, and the runs' sums then: closer than one long sum, and b's part of
// a run stays in the second-level cache.
constexpr int64_t kRun = 128;

// A matrix of f32, f16 or bf16 by its two steps, of which one is 1.
struct Matrix {
  DType dtype;
  const std::byte* data;
  int64_t row, along;
  const std::byte* at(int64_t i, int64_t k) const { return data + (i * row + k * along) * size_of(dtype); }
  // The dense run of n elements from (i, k) on, as f32.
  void widen(int64_t i, int64_t k, int64_t n, float* out) const {
    convert_run(dtype, at(i, k), DType::f32, out, n);
  }
};

// What a later tile will want, fetched evenly while this one is summed: of `rows` rows, `step` bytes apart,
// the first `bytes`, two lines at a time. Into the second-level cache: the first one is full of this tile.
struct Ahead {
  const std::byte* first;
  int64_t step, rows, bytes;
};
constexpr int64_t kFetched = 128;

// sums[i][0, V vectors) += alpha · Σ_k a[i][k] · b[k][0, V vectors), i < R, k < K; a's rows are dense.
template <int R, int V>
void AddTile(int64_t K, float alpha, const float* a, int64_t a_row, const float* b, int64_t b_row,
             float* sums, int64_t sums_row, Ahead ahead) {
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t fetches = ahead.rows * (ahead.bytes / kFetched);
  const int64_t pause = std::max<int64_t>(1, K / std::max<int64_t>(fetches, 1));
  int64_t fetch = fetches > 0 ? 0 : K, along_row = 0;
  for (int64_t done = 0; done < K; done += kRun) {
    Vector s[R][V];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) s[i][v] = hn::Zero(d);
    }
    for (int64_t k = done; k < std::min(done + kRun, K); ++k) {
      if (k == fetch) {
        __builtin_prefetch(ahead.first + along_row, 0, 2);
        __builtin_prefetch(ahead.first + along_row + kFetched / 2, 0, 2);
        along_row += kFetched;
        if (along_row == ahead.bytes) {
          along_row = 0;
          ahead.first += ahead.step;
        }
        fetch += pause;
      }
      Vector along[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) along[v] = hn::LoadU(d, b + v * lanes);
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) {
        const Vector factor = hn::Set(d, a[i * a_row]);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) s[i][v] = hn::MulAdd(factor, along[v], s[i][v]);
      }
      ++a;
      b += b_row;
    }
    const Vector scale = hn::Set(d, alpha);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        float* to = sums + i * sums_row + v * lanes;
        hn::StoreU(hn::MulAdd(scale, s[i][v], hn::LoadU(d, to)), d, to);
      }
    }
  }
}

// The same for a number of rows that is known when it runs.
template <int V, int R = kTileRows>
void AddRows(int64_t rows, int64_t K, float alpha, const float* a, int64_t a_row, const float* b,
             int64_t b_row, float* sums, int64_t sums_row, const Ahead& ahead) {
  if (rows == R) return AddTile<R, V>(K, alpha, a, a_row, b, b_row, sums, sums_row, ahead);
  if constexpr (R > 1) AddRows<V, R - 1>(rows, K, alpha, a, a_row, b, b_row, sums, sums_row, ahead);
}

// b's columns are dense, each a dot product's side: the logits' product. So the tiles are turned around: they
// take columns of b as their rows, and rows of `a`, packed as (tile, K, width), as their vectors.
template <int V>
void ByColumns(float alpha, const Matrix& a, const Matrix& b, float beta, int64_t M, int64_t N, int64_t K,
               float* y, int64_t y_row) {
  const int64_t width = V * static_cast<int64_t>(hn::Lanes(F32())), tiles = (M + width - 1) / width;
  Workspace<float> packed(static_cast<size_t>(tiles * K * width)), a_row(static_cast<size_t>(K));
  for (int64_t m = 0; m < M; ++m) {
    a.widen(m, 0, K, a_row.data());
    float* to = packed.data() + m / width * K * width + m % width;
    for (int64_t k = 0; k < K; ++k) to[k * width] = a_row[static_cast<size_t>(k)];
  }
  // So many columns are turned back together: y's lines are then written whole.
  constexpr int64_t kGroup = 4 * kTileRows;
  parallel_for((N + kGroup - 1) / kGroup, 1, [&](int64_t begin, int64_t end) {
    Workspace<float> sums(static_cast<size_t>(tiles * kGroup * width));
    const bool narrow = b.dtype != DType::f32;
    Workspace<float> wide(narrow ? static_cast<size_t>(kGroup * kRun) : 0);
    for (int64_t group = begin; group < end; ++group) {
      const int64_t first = group * kGroup, columns = std::min(kGroup, N - first);
      std::fill(sums.begin(), sums.end(), 0.f);
      // One run of `a`'s tile and of all columns is read from the first-level cache.
      for (int64_t k = 0; k < K; k += kRun) {
        const int64_t run = std::min(kRun, K - k), k_next = k + kRun < K ? k + kRun : 0;
        const float* columns_of_b = reinterpret_cast<const float*>(b.at(k, first));
        if (narrow) {
          for (int64_t n = 0; n < columns; ++n) b.widen(k, first + n, run, wide.data() + n * kRun);
          columns_of_b = wide.data();
        }
        const int64_t column_step = narrow ? kRun : b.along;
        // Columns of b's next run, that each of `a`'s tiles fetches.
        const int64_t share = (kTileRows + tiles - 1) / tiles;
        for (int64_t t = 0; t < tiles; ++t) {
          for (int64_t n = 0; n < columns; n += kTileRows) {
            const int64_t next = first + n + t * share + (k_next == 0 ? kGroup : 0);
            const Ahead ahead{b.at(k_next, std::min(next, N - kTileRows)), b.along * size_of(b.dtype), share,
                              kRun * size_of(b.dtype)};
            AddRows<V>(std::min<int64_t>(kTileRows, columns - n), run, alpha, columns_of_b + n * column_step,
                       column_step, packed.data() + (t * K + k) * width, width,
                       sums.data() + (t * kGroup + n) * width, width, ahead);
          }
        }
      }
      for (int64_t m = 0; m < M; ++m) {
        float* to = y + m * y_row + first;
        const float* from = sums.data() + m / width * kGroup * width + m % width;
        for (int64_t n = 0; n < columns; ++n) to[n] = from[n * width] + (beta == 0 ? 0 : beta * to[n]);
      }
    }
  });
}

// b's rows are dense: the input gradient's product. Each thread has columns of b, and goes down them in runs.
void ByRows(float alpha, const Matrix& a, const Matrix& b, float beta, int64_t M, int64_t N, int64_t K,
            float* y, int64_t y_row) {
  constexpr int V = kMostVectors;
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), width = V * lanes,
                row_tiles = (M + kTileRows - 1) / kTileRows;
  parallel_for((N + width - 1) / width, 1, [&](int64_t begin, int64_t end) {
    // A run of `a`, and one of some of b's columns, lie dense: rows are often a power of two apart, and would
    // share few places in the cache. y's last columns have a tile of their own where they are less than its
    // width.
    const int64_t left = begin * width, last = std::min(N, end * width), edge = last % width;
    const bool narrow = b.dtype != DType::f32;
    Workspace<float> a_run(static_cast<size_t>(M * kRun)), b_run(static_cast<size_t>(kRun * width)),
        b_wide(narrow ? static_cast<size_t>(kRun * (last - left)) : 0),
        y_edge(static_cast<size_t>(kTileRows * width));
    for (int64_t m = 0; m < M; ++m) {
      for (int64_t n = left; n < last; ++n) y[m * y_row + n] = beta == 0 ? 0 : beta * y[m * y_row + n];
    }
    for (int64_t k = 0; k < K; k += kRun) {
      const int64_t run = std::min(kRun, K - k), lines = (kRun + row_tiles - 1) / row_tiles;
      for (int64_t m = 0; m < M; ++m) a.widen(m, k, run, a_run.data() + m * kRun);
      const float* columns_of_b = reinterpret_cast<const float*>(b.at(k, left));
      int64_t row_step = b.row;
      if (narrow) {
        row_step = last - left;
        for (int64_t i = 0; i < run; ++i) b.widen(k + i, left, row_step, b_wide.data() + i * row_step);
        columns_of_b = b_wide.data();
      }
      for (int64_t n = left; n < last; n += width) {
        const bool whole = n + width <= last;
        const float* from = columns_of_b + (n - left);
        for (int64_t i = 0; i < run; ++i, from += row_step) {
          float* to = b_run.data() + i * width;
          if (!whole) {
            std::copy_n(from, edge, to);
            continue;
          }
          for (int v = 0; v < V; ++v) hn::StoreU(hn::LoadU(d, from + v * lanes), d, to + v * lanes);
        }
        for (int64_t m = 0; m < M; m += kTileRows) {
          const int64_t rows = std::min<int64_t>(kTileRows, M - m);
          const int64_t next = k + kRun + m / kTileRows * lines;
          const Ahead ahead{b.at(std::min(next, K - 1), n), b.row * size_of(b.dtype),
                            std::clamp<int64_t>(K - next, 0, lines), kFetched};
          float* const to = whole ? y + m * y_row + n : y_edge.data();
          if (!whole) std::fill(y_edge.begin(), y_edge.end(), 0.f);
          AddRows<V>(rows, run, alpha, a_run.data() + m * kRun, kRun, b_run.data(), width, to,
                     whole ? y_row : width, ahead);
          for (int64_t i = 0; !whole && i < rows; ++i) {
            for (int64_t j = 0; j < edge; ++j) y[(m + i) * y_row + n + j] += to[i * width + j];
          }
        }
      }
    }
  });
}

void FewRows(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& y) {
  const int64_t M = y.size(0), N = y.size(1), K = a.size(1);
  const auto matrix = [](const Tensor& x) {
    return Matrix{x.dtype(), static_cast<const std::byte*>(x.raw_data()), x.strides()[0], x.strides()[1]};
  };
  const Matrix ma = matrix(a), mb = matrix(b);
  const auto by = mb.row != 1                                   ? ByRows
                  : M <= static_cast<int64_t>(hn::Lanes(F32())) ? ByColumns<1>
                                                                : ByColumns<kMostVectors>;
  by(static_cast<float>(alpha), ma, mb, static_cast<float>(beta), M, N, K, y.mutable_data<float>(),
     y.strides()[0]);
}

}  // namespace tapehead::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tapehead {

HWY_EXPORT(FewRows);

// Measured: with more rows a library is faster, even if a matrix of 16 bits has to be widened for it; and for
// so small a matrix packing costs nothing to speak of.
constexpr int64_t kFewRows = 32, kFewRowsOf16Bits = 128;
constexpr int64_t kLargeMatrix = int64_t{1} << 17;

bool matmul_few_rows(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& y) {
  if (matmul_one_row(alpha, a, b, beta, y)) return true;
  const auto up_to_32_bits = [](const Tensor& x) { return x.dtype() == DType::f32 || is_half(x.dtype()); };
  if (!up_to_32_bits(a) || !up_to_32_bits(b) || y.dtype() != DType::f32 || y.dim() != 2) return false;
  const int64_t M = y.size(0), N = y.size(1), K = a.size(1);
  if (M > (is_half(b.dtype()) ? kFewRowsOf16Bits : kFewRows) || K * N < kLargeMatrix || alpha == 0)
    return false;
  const auto dense = [](const Tensor& x, size_t along) { return x.strides()[along] == 1; };
  if (!dense(a, 1) || !dense(y, 1) || !(dense(b, 0) || dense(b, 1))) return false;
  // Each thread has columns of its own.
  if (N < 64 * omp_get_max_threads() || K < 16) return false;
  HWY_DYNAMIC_DISPATCH(FewRows)(alpha, a, b, beta, y);
  return true;
}

}  // namespace tapehead
#endif  // HWY_ONCE
