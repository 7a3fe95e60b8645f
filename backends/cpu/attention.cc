// Attention, one head and one block of queries against one block of keys at a time.
//
// Forward keeps, for every query, the largest score so far and the sum of exponentials relative to it; when a
// block of keys brings a larger score, what was summed is scaled down (the online softmax). Backward computes
// each block's scores again, in the same arithmetic, and P = exp(scores - lse) from them.
//
// Blocks are multiplied where they stand, without packing: one factor is read number by number, with any
// strides, the other and the result in whole vectors, from rows padded to the widest one. So scores are
// computed as (keys, queries) in forward, which makes the softmax run along vectors, and as (queries, keys)
// in backward. Above the diagonal a causal product never reads: a NaN there does not reach earlier positions.

// The order matters (simd.h).
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/attention.cc"
#include "tapehead/backends/cpu/simd.h"
#include <hwy/foreach_target.h>
#include "tapehead/backends/cpu/simd_math-inl.h"
// clang-format on

#include <limits>

#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/backends/cpu/parallel.h"

#ifndef TAPEHEAD_ATTENTION_BLOCK
#define TAPEHEAD_ATTENTION_BLOCK
namespace tapehead {

constexpr int64_t kBlock = 64;  // positions of a block: its scores fit the first cache

// Which products c(i, :) = Σ_k a(i, k) · b(k, :) takes: all, k <= i, or k >= i.
enum class Band { full, lower, upper };

// Element (i, j) stands at data[i · row + j · column].
template <class W>
struct Matrix {
  W* data;
  int64_t row, column = 1;
};

// c (m, n) = a (m, k) · b (k, n), or += it if `add`. n is padded to whole vectors; b and c have column = 1.
template <class W>
struct BlockProduct {
  int64_t m, n, k;
  Matrix<const W> a, b;
  Matrix<W> c;
  bool add = false;
  Band band = Band::full;
};

// The vector code below, as chosen at run time.
template <class W>
struct BlockKernels {
  void (*multiply)(const BlockProduct<W>&);
  void (*softmax_block)(int64_t keys, W scale, bool diagonal, W* scores, W* largest, W* total, W* correction);
  void (*scale_rows)(int64_t rows, int64_t width, const W* factors, W* x);
  void (*softmax_gradient_block)(int64_t queries, W scale, const W* lse, const W* delta, W* scores, W* gp);
  void (*row_dots)(int64_t rows, int64_t width, Matrix<const W> a, Matrix<const W> b, W* result);
};

}  // namespace tapehead
#endif

// ---- Vector code, for each instruction set

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

// One block of keys enters the softmax: scores (keys, kBlock queries) are scaled and become exponentials
// relative to `largest`, which is updated like `total`; `correction` is the factor that earlier sums need.
template <class W>
static void softmax_block(int64_t keys, W scale, bool diagonal, W* scores, W* largest, W* total,
                          W* correction) {
  const hn::ScalableTag<W> d;
  const auto minus_infinity = hn::Set(d, -std::numeric_limits<W>::infinity());
  for (int64_t t = 0; t < kBlock; t += static_cast<int64_t>(hn::Lanes(d))) {
    const auto position = hn::Iota(d, static_cast<W>(t));
    const auto before = hn::LoadU(d, largest + t);
    auto now = before;
    for (int64_t s = 0; s < keys; ++s) {
      W* at = scores + s * kBlock + t;
      auto x = hn::Mul(hn::Set(d, scale), hn::LoadU(d, at));
      if (diagonal) x = hn::IfThenElse(hn::Ge(position, hn::Set(d, static_cast<W>(s))), x, minus_infinity);
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

// Row t of x (rows, width) *= factors[t].
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

// scores (queries, kBlock keys) become p = exp(scale · scores - lse), and gp, its gradient, becomes that of
// the unscaled scores: scale · p · (gp - delta), where delta = Σ_s p · gp = Σ_d y · gy.
template <class W>
static void softmax_gradient_block(int64_t queries, W scale, const W* lse, const W* delta, W* scores, W* gp) {
  const hn::ScalableTag<W> d;
  const auto factor = hn::Set(d, scale);
  for (int64_t t = 0; t < queries; ++t) {
    const auto l = hn::Set(d, lse[t]), mean = hn::Set(d, delta[t]);
    for (int64_t s = t * kBlock; s < (t + 1) * kBlock; s += static_cast<int64_t>(hn::Lanes(d))) {
      const auto p = Exp(d, hn::Sub(hn::Mul(factor, hn::LoadU(d, scores + s)), l));
      hn::StoreU(p, d, scores + s);
      hn::StoreU(hn::Mul(hn::Mul(factor, p), hn::Sub(hn::LoadU(d, gp + s), mean)), d, gp + s);
    }
  }
}

// result[t] = Σ_d a(t, d) · b(t, d), rows padded with zeros to `width`.
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

template <class W>
static BlockKernels<W> block_kernels() {
  if constexpr (std::is_same_v<W, double>) {
    return HWY_DYNAMIC_DISPATCH(block_kernels_f64)();
  } else {
    return HWY_DYNAMIC_DISPATCH(block_kernels_f32)();
  }
}

// Rows of whole vectors.
template <class W>
constexpr int64_t padded(int64_t width) {
  constexpr int64_t lanes = 64 / sizeof(W);
  return (width + lanes - 1) / lanes * lanes;
}

// The positions of one head: rows of D numbers, any distance apart.
template <class T>
struct Head {
  T* data;
  int64_t step;

  Head(T* base, const Tensor& x, int64_t head)
      : data(base + head / x.size(1) * x.strides()[0] + head % x.size(1) * x.strides()[1]),
        step(x.strides()[2]) {}
};

// Rows [t, t + n) of a head in the arithmetic's type, zero-padded: in place if so already, else in `scratch`.
template <class W, class T>
static Matrix<const W> load(const Head<const T>& x, int64_t t, int64_t n, int64_t width, W* scratch) {
  if constexpr (std::is_same_v<W, T>) {
    if (padded<W>(width) == width) return {x.data + t * x.step, x.step};
  }
  for (int64_t i = 0; i < n; ++i) {
    W* to = scratch + i * padded<W>(width);
    for (int64_t d = 0; d < width; ++d) to[d] = static_cast<W>(x.data[(t + i) * x.step + d]);
    std::fill(to + width, to + padded<W>(width), W{0});
  }
  return {scratch, padded<W>(width)};
}

// The same rows as columns: (width, kBlock), padded with zeros.
template <class W, class T>
static void load_transposed(const Head<const T>& x, int64_t t, int64_t n, int64_t width, W* to) {
  for (int64_t d = 0; d < width; ++d) {
    for (int64_t i = 0; i < n; ++i) to[d * kBlock + i] = static_cast<W>(x.data[(t + i) * x.step + d]);
    std::fill(to + d * kBlock + n, to + (d + 1) * kBlock, W{0});
  }
}

template <class W, class T>
static void store(const W* from, int64_t t, int64_t n, int64_t width, const Head<T>& y) {
  for (int64_t i = 0; i < n; ++i) {
    T* to = y.data + (t + i) * y.step;
    for (int64_t d = 0; d < width; ++d) to[d] = static_cast<T>(from[i * padded<W>(width) + d]);
  }
}

// Hands out one thread's scratch piece by piece.
template <class W>
struct Scratch {
  W* next;
  W* take(int64_t count) { return std::exchange(next, next + padded<W>(count)); }
};

// Calls f(unit, scratch) for all units, each thread with `size` numbers of its own.
template <class W, class F>
static void for_units(int64_t units, int64_t size, F&& f) {
  const int64_t workers = std::min<int64_t>(omp_get_max_threads(), units);
  size = padded<W>(size);
  Tensor scratch({workers, size}, dtype_of<W>());
  W* base = scratch.mutable_data<W>();
  parallel_for(workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t w = begin; w < end; ++w) {
      const int64_t last = units * (w + 1) / workers;
      for (int64_t unit = units * w / workers; unit < last; ++unit) f(unit, Scratch<W>{base + w * size});
    }
  });
}

void CpuBackend::attention(const Attention& args, Tensor& y, Tensor& lse) {
  if (lse.numel() == 0) return;
  visit_floating(y.dtype(), "attention", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    const int64_t positions = y.size(2), width = y.size(3), step = padded<W>(width);
    const int64_t blocks = (positions + kBlock - 1) / kBlock;
    const T *q = args.q.data<T>(), *k = args.k.data<T>(), *v = args.v.data<T>();
    T* out = y.mutable_data<T>();
    W* out_lse = lse.mutable_data<W>();
    const BlockKernels<W> kernels = block_kernels<W>();
    const W scale = static_cast<W>(args.scale);

    const int64_t size = kBlock * (width + 3 * step + kBlock + 3);
    for_units<W>(y.size(0) * y.size(1) * blocks, size, [&](int64_t unit, Scratch<W> scratch) {
      const int64_t head = unit / blocks, t = unit % blocks * kBlock;
      const int64_t queries = std::min(kBlock, positions - t);
      const Head<const T> hq(q, args.q, head), hk(k, args.k, head), hv(v, args.v, head);
      W* q_columns = scratch.take(kBlock * width);
      W* scores = scratch.take(kBlock * kBlock);
      W* sums = scratch.take(kBlock * step);  // of v, by query
      W *k_rows = scratch.take(kBlock * step), *v_rows = scratch.take(kBlock * step);
      W *largest = scratch.take(kBlock), *total = scratch.take(kBlock), *factor = scratch.take(kBlock);
      std::fill_n(largest, kBlock, -std::numeric_limits<W>::infinity());
      std::fill_n(total, kBlock, W{0});
      load_transposed(hq, t, queries, width, q_columns);
      for (int64_t s = 0; s < (args.causal ? t + queries : positions); s += kBlock) {
        const int64_t keys = std::min(kBlock, positions - s);
        const bool diagonal = args.causal && s == t;
        const Band seen = diagonal ? Band::lower : Band::full;
        const Matrix<const W> kb = load(hk, s, keys, width, k_rows), vb = load(hv, s, keys, width, v_rows);
        kernels.multiply({keys, kBlock, width, kb, {q_columns, kBlock}, {scores, kBlock}});
        kernels.softmax_block(keys, scale, diagonal, scores, largest, total, factor);
        if (s > 0) kernels.scale_rows(queries, step, factor, sums);
        kernels.multiply({queries, step, keys, {scores, 1, kBlock}, vb, {sums, step}, s > 0, seen});
      }
      for (int64_t i = 0; i < queries; ++i) {
        factor[i] = 1 / total[i];
        out_lse[head * positions + t + i] = largest[i] + std::log(total[i]);
      }
      kernels.scale_rows(queries, step, factor, sums);
      store(sums, t, queries, width, Head<T>(out, y, head));
    });
  });
}

void CpuBackend::attention_backward(const Attention& args, const Tensor& y, const Tensor& lse,
                                    const Tensor& gy, Tensor& gq, Tensor& gk, Tensor& gv) {
  if (lse.numel() == 0) return;
  visit_floating(y.dtype(), "attention_backward", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    const int64_t positions = y.size(2), width = y.size(3), step = padded<W>(width);
    const T *q = args.q.data<T>(), *k = args.k.data<T>(), *v = args.v.data<T>();
    const T *out = y.data<T>(), *up = gy.data<T>();
    const W* out_lse = lse.data<W>();
    T* to_q = gq.defined() ? gq.mutable_data<T>() : nullptr;
    T* to_k = gk.defined() ? gk.mutable_data<T>() : nullptr;
    T* to_v = gv.defined() ? gv.mutable_data<T>() : nullptr;
    const BlockKernels<W> kernels = block_kernels<W>();
    const W scale = static_cast<W>(args.scale);

    const int64_t size = positions * (step + 1) + kBlock * (2 * width + 5 * step + 2 * kBlock + 1);
    for_units<W>(y.size(0) * y.size(1), size, [&](int64_t head, Scratch<W> scratch) {
      const Head<const T> hq(q, args.q, head), hk(k, args.k, head), hv(v, args.v, head);
      const Head<const T> hy(out, y, head), hup(up, gy, head);
      W* delta = scratch.take(positions);
      W* q_sums = scratch.take(positions * step);
      W *k_columns = scratch.take(kBlock * width), *v_columns = scratch.take(kBlock * width);
      W *p = scratch.take(kBlock * kBlock), *gp = scratch.take(kBlock * kBlock);
      W *q_rows = scratch.take(kBlock * step), *up_rows = scratch.take(kBlock * step);
      W* k_rows = scratch.take(kBlock * step);
      W *k_sums = scratch.take(kBlock * step), *v_sums = scratch.take(kBlock * step);
      for (int64_t t = 0; t < positions; t += kBlock) {
        const int64_t queries = std::min(kBlock, positions - t);
        const Matrix<const W> yb = load(hy, t, queries, width, q_rows),
                              gb = load(hup, t, queries, width, up_rows);
        kernels.row_dots(queries, step, yb, gb, delta + t);
      }
      for (int64_t s = 0; s < positions; s += kBlock) {
        const int64_t keys = std::min(kBlock, positions - s);
        load_transposed(hk, s, keys, width, k_columns);
        load_transposed(hv, s, keys, width, v_columns);
        const Matrix<const W> kb = load(hk, s, keys, width, k_rows);
        const int64_t from = args.causal ? s : 0;
        for (int64_t t = from; t < positions; t += kBlock) {
          const int64_t queries = std::min(kBlock, positions - t);
          const bool diagonal = args.causal && s == t, add = t > from;
          const Band seen = diagonal ? Band::lower : Band::full,
                     seen_by = diagonal ? Band::upper : Band::full;
          const Matrix<const W> qb = load(hq, t, queries, width, q_rows),
                                gb = load(hup, t, queries, width, up_rows);
          kernels.multiply({queries, kBlock, width, qb, {k_columns, kBlock}, {p, kBlock}});
          kernels.multiply({queries, kBlock, width, gb, {v_columns, kBlock}, {gp, kBlock}});
          kernels.softmax_gradient_block(queries, scale, out_lse + head * positions + t, delta + t, p, gp);
          if (to_v) {
            kernels.multiply({keys, step, queries, {p, 1, kBlock}, gb, {v_sums, step}, add, seen_by});
          }
          if (to_k) {
            kernels.multiply({keys, step, queries, {gp, 1, kBlock}, qb, {k_sums, step}, add, seen_by});
          }
          if (to_q) {
            kernels.multiply({queries, step, keys, {gp, kBlock}, kb, {q_sums + t * step, step}, s > 0, seen});
          }
        }
        if (to_k) store(k_sums, s, keys, width, Head<T>(to_k, gk, head));
        if (to_v) store(v_sums, s, keys, width, Head<T>(to_v, gv, head));
      }
      if (to_q) store(q_sums, 0, positions, width, Head<T>(to_q, gq, head));
    });
  });
}

}  // namespace tapehead
#endif
