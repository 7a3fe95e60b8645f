// The order matters (simd.h).
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/attention_blocks.cc"
#include "tapehead/backends/cpu/simd.h"
#include <hwy/foreach_target.h>
#include "tapehead/backends/cpu/simd_math-inl.h"
// clang-format on

#include "tapehead/backends/cpu/attention_blocks.h"

#include <limits>

// ---- For each instruction set

HWY_BEFORE_NAMESPACE();
namespace tapehead::HWY_NAMESPACE {

// R rows and V vectors of c, from row i on.
template <int R, int V, class W>
static HWY_INLINE void multiply_tile(const BlockProduct<W>& p, int64_t i, const W* HWY_RESTRICT b,
                                     W* HWY_RESTRICT c) {
  const hn::ScalableTag<W> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const W* HWY_RESTRICT a = p.a.data + i * p.a.row;
  hn::Vec<decltype(d)> sum[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) sum[r][v] = p.add ? hn::LoadU(d, c + r * p.c.row + v * lanes) : hn::Zero(d);
  }
  const auto add_to_row = [&](int r, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t k = begin; k < end; ++k) {
      const auto x = hn::Set(d, a[r * p.a.row + k * p.a.column]);
      for (int v = 0; v < V; ++v)
        sum[r][v] = hn::MulAdd(x, hn::LoadU(d, b + k * p.b.row + v * lanes), sum[r][v]);
    }
  };
  // The columns that all R rows take, and, on either side of them, those that some take.
  const int64_t begin = p.band == Band::upper ? i + R - 1 : 0, end = p.band == Band::lower ? i + 1 : p.k;
  if (p.band == Band::upper) {
    for (int r = 0; r < R; ++r) add_to_row(r, i + r, begin);
  }
  for (int64_t k = begin; k < end; ++k) {
    hn::Vec<decltype(d)> y[V];
    for (int v = 0; v < V; ++v) y[v] = hn::LoadU(d, b + k * p.b.row + v * lanes);
    for (int r = 0; r < R; ++r) {
      const auto x = hn::Set(d, a[r * p.a.row + k * p.a.column]);
      for (int v = 0; v < V; ++v) sum[r][v] = hn::MulAdd(x, y[v], sum[r][v]);
    }
  }
  if (p.band == Band::lower) {
    for (int r = 1; r < R; ++r) add_to_row(r, end, i + r + 1);
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) hn::StoreU(sum[r][v], d, c + r * p.c.row + v * lanes);
  }
}

template <int R, class W>
static void multiply_rows(const BlockProduct<W>& p, int64_t i) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(hn::ScalableTag<W>()));
  W* c = p.c.data + i * p.c.row;
  int64_t j = 0;
  for (; j + 2 * lanes <= p.n; j += 2 * lanes) multiply_tile<R, 2>(p, i, p.b.data + j, c + j);
  for (; j < p.n; j += lanes) multiply_tile<R, 1>(p, i, p.b.data + j, c + j);
}

template <class W>
static void multiply(const BlockProduct<W>& p) {
  // Sums in registers, and enough of them to hide the latency of multiply-add: AVX-512 has 32, others 16.
  constexpr int kRows = HWY_TARGET <= HWY_AVX3 ? 8 : 4;
  int64_t i = 0;
  for (; i + kRows <= p.m; i += kRows) multiply_rows<kRows>(p, i);
  for (; i < p.m; ++i) multiply_rows<1>(p, i);
}

template <class W>
static void softmax_block(int64_t queries, int64_t keys, W scale, bool diagonal, const W* unseen, W* scores,
                          W* largest, W* total, W* correction) {
  const hn::ScalableTag<W> d;
  const auto minus_infinity = hn::Set(d, -std::numeric_limits<W>::infinity());
  for (int64_t t = 0; t < queries; t += static_cast<int64_t>(hn::Lanes(d))) {
    const auto first = unseen ? hn::LoadU(d, unseen + t) : hn::Zero(d);
    const auto position = hn::Iota(d, static_cast<W>(t));
    const auto before = hn::LoadU(d, largest + t);
    auto now = before;
    for (int64_t s = 0; s < keys; ++s) {
      W* at = scores + s * kBlock + t;
      auto x = hn::Mul(hn::Set(d, scale), hn::LoadU(d, at));
      const auto key = hn::Set(d, static_cast<W>(s));
      if (diagonal) x = hn::IfThenElse(hn::Ge(position, key), x, minus_infinity);
      if (unseen) x = hn::IfThenElse(hn::Ge(key, first), x, minus_infinity);
      hn::StoreU(x, d, at);
      now = hn::Max(now, x);
    }
    // While all scores are -inf, so are their differences from 0.
    const auto base = hn::IfThenElse(hn::Eq(now, minus_infinity), hn::Zero(d), now);
    auto sum = hn::Zero(d);
    for (int64_t s = 0; s < keys; ++s) {
      W* at = scores + s * kBlock + t;
      const auto e = Exp(d, hn::Sub(hn::LoadU(d, at), base));
      hn::StoreU(e, d, at);
      sum = hn::Add(sum, e);
    }
    const auto factor = Exp(d, hn::Sub(before, base));
    hn::StoreU(factor, d, correction + t);
    hn::StoreU(now, d, largest + t);
    hn::StoreU(hn::Add(hn::Mul(hn::LoadU(d, total + t), factor), sum), d, total + t);
  }
}

template <class W>
static void scale_rows(int64_t rows, int64_t width, const W* factors, W* x) {
  const hn::ScalableTag<W> d;
  for (int64_t t = 0; t < rows; ++t) {
    const auto factor = hn::Set(d, factors[t]);
    for (int64_t j = 0; j < width; j += static_cast<int64_t>(hn::Lanes(d))) {
      W* at = x + t * width + j;
      hn::StoreU(hn::Mul(factor, hn::LoadU(d, at)), d, at);
    }
  }
}

template <class W>
static void softmax_gradient_block(int64_t queries, W scale, const W* unseen, const W* lse, const W* delta,
                                   W* scores, W* gp) {
  const hn::ScalableTag<W> d;
  const auto factor = hn::Set(d, scale);
  for (int64_t t = 0; t < queries; ++t) {
    const auto l = hn::Set(d, lse[t]), mean = hn::Set(d, delta[t]);
    for (int64_t s = 0; s < kBlock; s += static_cast<int64_t>(hn::Lanes(d))) {
      W *score = scores + t * kBlock + s, *gradient = gp + t * kBlock + s;
      auto p = Exp(d, hn::Sub(hn::Mul(factor, hn::LoadU(d, score)), l));
      auto g = hn::Mul(hn::Mul(factor, p), hn::Sub(hn::LoadU(d, gradient), mean));
      if (unseen) {
        const auto seen = hn::Ge(hn::Iota(d, static_cast<W>(s)), hn::Set(d, unseen[t]));
        p = hn::IfThenElseZero(seen, p);
        g = hn::IfThenElseZero(seen, g);
      }
      hn::StoreU(p, d, score);
      hn::StoreU(g, d, gradient);
    }
  }
}

template <class W>
static void row_dots(int64_t rows, int64_t width, Matrix<const W> a, Matrix<const W> b, W* result) {
  const hn::ScalableTag<W> d;
  for (int64_t t = 0; t < rows; ++t) {
    auto sum = hn::Zero(d);
    for (int64_t j = 0; j < width; j += static_cast<int64_t>(hn::Lanes(d))) {
      sum = hn::MulAdd(hn::LoadU(d, a.data + t * a.row + j), hn::LoadU(d, b.data + t * b.row + j), sum);
    }
    result[t] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

static BlockKernels<float> block_kernels_f32() {
  return {multiply<float>, softmax_block<float>, scale_rows<float>, softmax_gradient_block<float>,
          row_dots<float>};
}

static BlockKernels<double> block_kernels_f64() {
  return {multiply<double>, softmax_block<double>, scale_rows<double>, softmax_gradient_block<double>,
          row_dots<double>};
}

}  // namespace tapehead::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

// ---- What is compiled once

#if HWY_ONCE
namespace tapehead {

HWY_EXPORT(block_kernels_f32);
HWY_EXPORT(block_kernels_f64);

template <>
BlockKernels<float> block_kernels<float>() {
  return HWY_DYNAMIC_DISPATCH(block_kernels_f32)();
}

template <>
BlockKernels<double> block_kernels<double>() {
  return HWY_DYNAMIC_DISPATCH(block_kernels_f64)();
}

}  // namespace tapehead
#endif
