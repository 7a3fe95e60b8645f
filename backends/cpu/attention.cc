// Attention, one head and one block of queries against one block of keys at a time.
//
// Forward keeps, for every query, the largest score so far and the sum of exponentials relative to it; when a
// block of keys brings a larger score, what was summed is scaled down (the online softmax). Backward computes
// each block's scores again, in the same arithmetic, and P = exp(scores - lse) from them.
//
// Scores are computed as (keys, queries) in forward, which makes the softmax run along vectors, and as
// (queries, keys) in backward. Above the diagonal a causal product never reads: a NaN there does not reach
// earlier positions. Keys before first_seen get the probability 0, and a block of keys that lies before
// all of them is skipped.
#include <cmath>
#include <limits>

#include "tapehead/backends/cpu/attention_blocks.h"
#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/core/parallel.h"

namespace tapehead {

namespace {

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
Matrix<const W> load(const Head<const T>& x, int64_t t, int64_t n, int64_t width, W* scratch) {
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
void load_transposed(const Head<const T>& x, int64_t t, int64_t n, int64_t width, W* to) {
  for (int64_t d = 0; d < width; ++d) {
    for (int64_t i = 0; i < n; ++i) to[d * kBlock + i] = static_cast<W>(x.data[(t + i) * x.step + d]);
    std::fill(to + d * kBlock + n, to + (d + 1) * kBlock, W{0});
  }
}

template <class W, class T>
void store(const W* from, int64_t t, int64_t n, int64_t width, const Head<T>& y) {
  for (int64_t i = 0; i < n; ++i) {
    T* to = y.data + (t + i) * y.step;
    for (int64_t d = 0; d < width; ++d) to[d] = static_cast<T>(from[i * padded<W>(width) + d]);
  }
}

// Where a call's queries and keys stand, and how they are cut into blocks: queries from 0 on, keys so that
// each block of queries has its own positions in one block of keys.
struct Positions {
  explicit Positions(const Attention& args)
      : queries(args.q.size(2)),
        keys(args.k.size(2)),
        past(keys - queries),
        lead(past % kBlock),
        causal(args.causal),
        first(args.first_seen.defined() ? args.first_seen.data<int64_t>() : nullptr) {}

  // The sizes of the blocks that begin at query t and at key s.
  int64_t query_block(int64_t t) const { return std::min(kBlock, queries - t); }
  int64_t key_block(int64_t s) const { return std::min(s < lead ? lead : kBlock, keys - s); }

  // The keys [begin, end) that the block at query t of this sequence sees, begin at the begin of a block.
  int64_t begin(int64_t sequence, int64_t t) const {
    if (!first) return 0;
    const int64_t* of = first + sequence * queries + t;
    const int64_t least = *std::min_element(of, of + query_block(t));
    return least < lead ? 0 : least - (least - lead) % kBlock;
  }
  int64_t end(int64_t t) const { return causal ? past + t + query_block(t) : keys; }
  // The first query whose block sees a key of the block at s.
  int64_t first_query(int64_t s) const { return causal ? std::max<int64_t>(s - past, 0) : 0; }
  bool diagonal(int64_t t, int64_t s) const { return causal && s == past + t; }

  // How many keys of the block at s each query of the block at t does not see for its first_seen, in
  // `scratch`; null where all see all.
  template <class W>
  const W* unseen(int64_t sequence, int64_t t, int64_t s, W* scratch) const {
    if (!first) return nullptr;
    const int64_t count = query_block(t);
    const int64_t* of = first + sequence * queries + t;
    if (*std::max_element(of, of + count) <= s) return nullptr;
    for (int64_t i = 0; i < kBlock; ++i) {
      scratch[i] = static_cast<W>(i < count ? std::clamp<int64_t>(of[i] - s, 0, kBlock) : 0);
    }
    return scratch;
  }

  int64_t queries, keys;
  int64_t past;  // positions before the first query's
  int64_t lead;  // size of the first block of keys, if it is a shorter one
  bool causal;
  const int64_t* first;  // (B, T), or null
};

// Hands out one thread's scratch piece by piece.
template <class W>
struct Scratch {
  W* next;
  W* take(int64_t count) { return std::exchange(next, next + padded<W>(count)); }
};

// Calls f(unit, scratch) for all units, each thread with `size` numbers of its own.
template <class W, class F>
void for_units(int64_t units, int64_t size, F&& f) {
  const int64_t workers = std::min<int64_t>(omp_get_max_threads(), units);
  size = padded<W>(size);
  Tensor scratch({workers, size}, dtype_of<W>(), Device{Device::cpu});
  W* base = scratch.mutable_data<W>();
  parallel_for(workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t w = begin; w < end; ++w) {
      const int64_t last = units * (w + 1) / workers;
      for (int64_t unit = units * w / workers; unit < last; ++unit) f(unit, Scratch<W>{base + w * size});
    }
  });
}

}  // namespace

void CpuBackend::attention(const Attention& args, Tensor& y, Tensor& lse) {
  if (lse.numel() == 0) return;
  visit_floating(y.dtype(), "attention", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    const Positions at(args);
    const int64_t heads = y.size(1), group = heads / args.k.size(1);
    const int64_t width = y.size(3), step = padded<W>(width), blocks = (at.queries + kBlock - 1) / kBlock;
    const T *q = args.q.data<T>(), *k = args.k.data<T>(), *v = args.v.data<T>();
    T* out = y.mutable_data<T>();
    W* out_lse = lse.mutable_data<W>();
    const BlockKernels<W> kernels = block_kernels<W>();
    const W scale = static_cast<W>(args.scale);

    const int64_t size = kBlock * (width + 3 * step + kBlock + 4);
    for_units<W>(y.size(0) * heads * blocks, size, [&](int64_t unit, Scratch<W> scratch) {
      const int64_t head = unit / blocks, sequence = head / heads, t = unit % blocks * kBlock;
      const int64_t queries = at.query_block(t), columns = padded<W>(queries);
      const Head<const T> hq(q, args.q, head), hk(k, args.k, head / group), hv(v, args.v, head / group);
      W* q_columns = scratch.take(kBlock * width);
      W* scores = scratch.take(kBlock * kBlock);
      W* sums = scratch.take(kBlock * step);  // of v, by query
      W *k_rows = scratch.take(kBlock * step), *v_rows = scratch.take(kBlock * step);
      W *largest = scratch.take(kBlock), *total = scratch.take(kBlock), *factor = scratch.take(kBlock);
      W* unseen_keys = scratch.take(kBlock);
      std::fill_n(largest, kBlock, -std::numeric_limits<W>::infinity());
      std::fill_n(total, kBlock, W{0});
      load_transposed(hq, t, queries, width, q_columns);
      const int64_t begin = at.begin(sequence, t), end = at.end(t);
      for (int64_t s = begin, keys; s < end; s += keys) {
        keys = at.key_block(s);
        const bool diagonal = at.diagonal(t, s);
        const Band seen = diagonal ? Band::lower : Band::full;
        const Matrix<const W> kb = load(hk, s, keys, width, k_rows), vb = load(hv, s, keys, width, v_rows);
        kernels.multiply({keys, columns, width, kb, {q_columns, kBlock}, {scores, kBlock}});
        kernels.softmax_block(columns, keys, scale, diagonal, at.unseen(sequence, t, s, unseen_keys), scores,
                              largest, total, factor);
        if (s > begin) kernels.scale_rows(queries, step, factor, sums);
        kernels.multiply({queries, step, keys, {scores, 1, kBlock}, vb, {sums, step}, s > begin, seen});
      }
      for (int64_t i = 0; i < queries; ++i) {
        factor[i] = 1 / total[i];
        out_lse[head * at.queries + t + i] = largest[i] + std::log(total[i]);
      }
      kernels.scale_rows(queries, step, factor, sums);
      store(sums, t, queries, width, Head<T>(out, y, head));
    });
  });
}

void CpuBackend::attention_backward(const Attention& args, const Tensor& y, const Tensor& lse,
                                    const Tensor& gy, Tensor& gq, Tensor& gk, Tensor& gv) {
  if (lse.numel() == 0) {
    if (gk.defined()) fill(gk, 0);
    if (gv.defined()) fill(gv, 0);
    return;
  }
  visit_floating(y.dtype(), "attention_backward", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    const Positions at(args);
    const int64_t heads = y.size(1), group = heads / args.k.size(1);
    const int64_t width = y.size(3), step = padded<W>(width);
    const T *q = args.q.data<T>(), *k = args.k.data<T>(), *v = args.v.data<T>();
    const T *out = y.data<T>(), *up = gy.data<T>();
    const W* out_lse = lse.data<W>();
    T* to_q = gq.defined() ? gq.mutable_data<T>() : nullptr;
    T* to_k = gk.defined() ? gk.mutable_data<T>() : nullptr;
    T* to_v = gv.defined() ? gv.mutable_data<T>() : nullptr;
    const BlockKernels<W> kernels = block_kernels<W>();
    const W scale = static_cast<W>(args.scale);

    // A unit is a head of keys and values, with the group of query heads that read it, in their order.
    const int64_t size = group * at.queries * (step + 1) + kBlock * (2 * width + 5 * step + 2 * kBlock + 2);
    for_units<W>(y.size(0) * args.k.size(1), size, [&](int64_t unit, Scratch<W> scratch) {
      const int64_t sequence = unit / args.k.size(1);
      const Head<const T> hk(k, args.k, unit), hv(v, args.v, unit);
      W* delta = scratch.take(group * at.queries);
      W* q_sums = scratch.take(group * at.queries * step);
      W *k_columns = scratch.take(kBlock * width), *v_columns = scratch.take(kBlock * width);
      W *p = scratch.take(kBlock * kBlock), *gp = scratch.take(kBlock * kBlock);
      W *q_rows = scratch.take(kBlock * step), *up_rows = scratch.take(kBlock * step);
      W* k_rows = scratch.take(kBlock * step);
      W *k_sums = scratch.take(kBlock * step), *v_sums = scratch.take(kBlock * step);
      W* unseen_keys = scratch.take(kBlock);
      std::fill_n(q_sums, group * at.queries * step, W{0});
      for (int64_t i = 0; i < group; ++i) {
        const Head<const T> hy(out, y, unit * group + i), hup(up, gy, unit * group + i);
        for (int64_t t = 0; t < at.queries; t += kBlock) {
          const int64_t queries = at.query_block(t);
          const Matrix<const W> yb = load(hy, t, queries, width, q_rows),
                                gb = load(hup, t, queries, width, up_rows);
          kernels.row_dots(queries, step, yb, gb, delta + i * at.queries + t);
        }
      }
      for (int64_t s = 0, keys; s < at.keys; s += keys) {
        keys = at.key_block(s);
        load_transposed(hk, s, keys, width, k_columns);
        load_transposed(hv, s, keys, width, v_columns);
        const Matrix<const W> kb = load(hk, s, keys, width, k_rows);
        std::fill_n(k_sums, kBlock * step, W{0});
        std::fill_n(v_sums, kBlock * step, W{0});
        for (int64_t i = 0; i < group; ++i) {
          const int64_t head = unit * group + i;
          const Head<const T> hq(q, args.q, head), hup(up, gy, head);
          for (int64_t t = at.first_query(s); t < at.queries; t += kBlock) {
            if (s < at.begin(sequence, t)) continue;
            const int64_t queries = at.query_block(t), row = i * at.queries + t;
            const bool diagonal = at.diagonal(t, s);
            const Band seen = diagonal ? Band::lower : Band::full,
                       seen_by = diagonal ? Band::upper : Band::full;
            const Matrix<const W> qb = load(hq, t, queries, width, q_rows),
                                  gb = load(hup, t, queries, width, up_rows);
            kernels.multiply({queries, kBlock, width, qb, {k_columns, kBlock}, {p, kBlock}});
            kernels.multiply({queries, kBlock, width, gb, {v_columns, kBlock}, {gp, kBlock}});
            kernels.softmax_gradient_block(queries, scale, at.unseen(sequence, t, s, unseen_keys),
                                           out_lse + head * at.queries + t, delta + row, p, gp);
            if (to_v) {
              kernels.multiply({keys, step, queries, {p, 1, kBlock}, gb, {v_sums, step}, true, seen_by});
            }
            if (to_k) {
              kernels.multiply({keys, step, queries, {gp, 1, kBlock}, qb, {k_sums, step}, true, seen_by});
            }
            if (to_q) {
              kernels.multiply(
                  {queries, step, keys, {gp, kBlock}, kb, {q_sums + row * step, step}, true, seen});
            }
          }
        }
        if (to_k) store(k_sums, s, keys, width, Head<T>(to_k, gk, unit));
        if (to_v) store(v_sums, s, keys, width, Head<T>(to_v, gv, unit));
      }
      for (int64_t i = 0; to_q && i < group; ++i) {
        store(q_sums + i * at.queries * step, 0, at.queries, width, Head<T>(to_q, gq, unit * group + i));
      }
    });
  });
}

}  // namespace tapehead
