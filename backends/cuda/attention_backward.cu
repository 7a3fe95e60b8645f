// Attention, backward: one kernel for the gradients of keys and values, whose blocks
// have a tile of keys each, and one for that of the queries, whose blocks have a tile of
// queries. Both compute each tile's scores again, and P = exp(scores - lse) from them;
// so every sum is one block's, in one order, and no two blocks write to the same place.
#include <cmath>

#include "tapehead/backends/cuda/attention_bf16.h"
#include "tapehead/backends/cuda/scratch.h"

namespace tapehead {
namespace {

template <class W, int kD>
struct BackwardTiles {
  static constexpr int kRows = tile_rows<W, kD>(sizeof(W) == 4 ? 16 << 10 : 8 << 10), kR = kRows / kSide;
  static constexpr int kPitch = tile_pitch<W>(kD), kScorePitch = tile_pitch<W>(kRows);
  static constexpr int kTile = kRows * kPitch, kScores = kRows * kScorePitch;
  static constexpr size_t bytes(int score_tiles) { return (4 * kTile + score_tiles * kScores) * sizeof(W); }
};

// delta[b, h, t] = Σ_d y · gy = Σ_s P · gP: a warp a query.
template <class T>
__global__ void delta_kernel(Sight sight, int64_t rows, int64_t D, Heads<const T> y, Heads<const T> gy,
                             wide_t<T>* delta) {
  using W = wide_t<T>;
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / kWarp);
  for (int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp; row < rows; row += warps) {
    const int64_t head = row / sight.T, t = row % sight.T, b = head / sight.H, h = head % sight.H;
    const T *a = y.at(b, h) + t * y.position, *g = gy.at(b, h) + t * gy.position;
    W sum = 0;
    for (int64_t d = threadIdx.x % kWarp; d < D; d += kWarp) sum += widen(a[d]) * widen(g[d]);
    sum = warp_reduce(sum, Add());
    if (threadIdx.x % kWarp == 0) delta[row] = sum;
  }
}

/// One query's part of a tile's softmax: its keys, lse and delta.
template <class W>
struct QueryRow {
  int64_t first = 0, last = -1;  // of the keys it sees; none beyond the last query
  W lse = 0, delta = 0;

  template <class T>
  __device__ static QueryRow of(const BackwardInputs<T>& in, int64_t b, int64_t h, int64_t t) {
    if (t >= in.sight.T) return {};
    const int64_t row = (b * in.sight.H + h) * in.sight.T + t;
    return {in.sight.first(b, t), in.sight.last(t), in.lse[row], in.delta[row]};
  }
  __device__ bool sees(int64_t s) const { return first <= s && s <= last; }
};

/// A thread's scores x and their gradients gx, tile-wide: P, and the gradient of the unscaled scores,
/// scale · P · (gP - delta). Returns whether all were seen; others are 0.
template <int kR, class W>
__device__ bool softmax_gradient(const QueryRow<W> (&row)[kR], int64_t s0, W scale, W (&x)[kR][kR],
                                 W (&gx)[kR][kR]) {
  bool all = true;
#pragma unroll
  for (int i = 0; i < kR; ++i) {
#pragma unroll
    for (int j = 0; j < kR; ++j) {
      const bool seen = row[i].sees(s0 + static_cast<int>(threadIdx.x) % kSide + kSide * j);
      all = all && seen;
      x[i][j] = seen ? std::exp(scale * x[i][j] - row[i].lse) : W{0};
      gx[i][j] = seen ? scale * x[i][j] * (gx[i][j] - row[i].delta) : W{0};
    }
  }
  return all;
}

/// Element (ty + 16 i, tx + 16 j) of `tile` = x[i][j].
template <int kPitch, int kR, class W>
__device__ void store_scores(const W (&x)[kR][kR], W* tile) {
  const int tx = static_cast<int>(threadIdx.x) % kSide, ty = static_cast<int>(threadIdx.x) / kSide;
#pragma unroll
  for (int i = 0; i < kR; ++i) {
#pragma unroll
    for (int j = 0; j < kR; ++j) tile[(ty + kSide * i) * kPitch + tx + kSide * j] = x[i][j];
  }
}

// gk and gv of a tile of keys: the queries of all heads that read it come by.
template <class T, int kD>
__global__ void __launch_bounds__(kTileThreads, 1)
    key_gradient_kernel(BackwardInputs<T> in, int64_t heads, int64_t tiles, Heads<T> gk, Heads<T> gv) {
  using W = wide_t<T>;
  using Tiles = BackwardTiles<W, kD>;
  constexpr int kRows = Tiles::kRows, kR = Tiles::kR;
  const Sight& sight = in.sight;
  W* keys = dynamic_shared<W>();
  W *values = keys + Tiles::kTile, *queries = values + Tiles::kTile, *ups = queries + Tiles::kTile;
  W *p = ups + Tiles::kTile, *gp = p + Tiles::kScores;
  const int ty = static_cast<int>(threadIdx.x) / kSide;

  for_each_row(heads * tiles, [&](int64_t unit) {
    const int64_t b = unit % heads / sight.G, g = unit % heads % sight.G, s0 = unit / heads * kRows;
    load_tile<kD, kRows>(in.k.at(b, g), in.k.position, s0, sight.S, in.D, keys);
    load_tile<kD, kRows>(in.v.at(b, g), in.v.position, s0, sight.S, in.D, values);
    HeadSums<W, kD, kR> k_sums, v_sums;               // of keys s0 + kR · ty + i
    const int64_t before = s0 - (sight.S - sight.T);  // the first query that sees key s0, where it is causal
    const int64_t from = sight.causal && before > 0 ? before / kRows * kRows : 0;
    const int64_t group = sight.H / sight.G;
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      for (int64_t t0 = from; t0 < sight.T; t0 += kRows) {
        QueryRow<W> row[kR];
        bool any = false;
#pragma unroll
        for (int i = 0; i < kR; ++i) {
          row[i] = QueryRow<W>::of(in, b, h, t0 + ty + kSide * i);
          any = any || (row[i].first < s0 + kRows && row[i].last >= s0);
        }
        if (!__syncthreads_or(any)) continue;
        load_tile<kD, kRows>(in.q.at(b, h), in.q.position, t0, sight.T, in.D, queries);
        load_tile<kD, kRows>(in.gy.at(b, h), in.gy.position, t0, sight.T, in.D, ups);
        __syncthreads();
        W x[kR][kR], gx[kR][kR];
        multiply_heads<kD>(queries, keys, in.D, x);
        multiply_heads<kD>(ups, values, in.D, gx);
        const bool seen = softmax_gradient(row, s0, in.scale, x, gx);
        store_scores<Tiles::kScorePitch>(x, p);
        store_scores<Tiles::kScorePitch>(gx, gp);
        const bool all = __syncthreads_and(seen);
        const auto add = [&](auto&& counts) {
          for (int t = 0; t < kRows; ++t) {
            W factor[kR];
            const auto seen_here = [&](int i) { return counts(t, s0 + kR * ty + i); };
            load_aligned(p + t * Tiles::kScorePitch + kR * ty, factor);
            v_sums.add(factor, ups + t * Tiles::kPitch, seen_here);
            load_aligned(gp + t * Tiles::kScorePitch + kR * ty, factor);
            k_sums.add(factor, queries + t * Tiles::kPitch, seen_here);
          }
        };
        if (all) {
          add([](int, int64_t) { return true; });
        } else {
          add([&](int t, int64_t s) {
            return t0 + t < sight.T && sight.first(b, t0 + t) <= s && s <= sight.last(t0 + t);
          });
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kR; ++i) {
      const int64_t s = s0 + kR * ty + i;
      if (s >= sight.S) continue;
      if (gk.data) k_sums.store(i, gk.at(b, g) + s * gk.position, in.D);
      if (gv.data) v_sums.store(i, gv.at(b, g) + s * gv.position, in.D);
    }
    __syncthreads();
  });
}

// gq of a tile of queries: the keys come by.
template <class T, int kD>
__global__ void __launch_bounds__(kTileThreads, 1)
    query_gradient_kernel(BackwardInputs<T> in, int64_t heads, int64_t tiles, Heads<T> gq) {
  using W = wide_t<T>;
  using Tiles = BackwardTiles<W, kD>;
  constexpr int kRows = Tiles::kRows, kR = Tiles::kR;
  const Sight& sight = in.sight;
  W* queries = dynamic_shared<W>();
  W *ups = queries + Tiles::kTile, *keys = ups + Tiles::kTile, *values = keys + Tiles::kTile;
  W* gp = values + Tiles::kTile;
  const int ty = static_cast<int>(threadIdx.x) / kSide;

  for_each_row(heads * tiles, [&](int64_t unit) {
    const int64_t b = unit % heads / sight.H, h = unit % heads % sight.H, g = h / (sight.H / sight.G);
    const int64_t t0 = (tiles - 1 - unit / heads) * kRows;
    const int64_t t_end = t0 + kRows < sight.T ? t0 + kRows : sight.T;
    load_tile<kD, kRows>(in.q.at(b, h), in.q.position, t0, sight.T, in.D, queries);
    load_tile<kD, kRows>(in.gy.at(b, h), in.gy.position, t0, sight.T, in.D, ups);
    QueryRow<W> row[kR];
#pragma unroll
    for (int i = 0; i < kR; ++i) row[i] = QueryRow<W>::of(in, b, h, t0 + ty + kSide * i);
    HeadSums<W, kD, kR> sums;
    for (int64_t s0 = first_seen_by(sight, b, t0, t_end) / kRows * kRows; s0 <= sight.last(t_end - 1);
         s0 += kRows) {
      __syncthreads();
      load_tile<kD, kRows>(in.k.at(b, g), in.k.position, s0, sight.S, in.D, keys);
      load_tile<kD, kRows>(in.v.at(b, g), in.v.position, s0, sight.S, in.D, values);
      __syncthreads();
      W x[kR][kR], gx[kR][kR];
      multiply_heads<kD>(queries, keys, in.D, x);
      multiply_heads<kD>(ups, values, in.D, gx);
      const bool seen = softmax_gradient(row, s0, in.scale, x, gx);
      store_scores<Tiles::kScorePitch>(gx, gp);
      if (__syncthreads_and(seen)) {
        sums.template add_rows<kRows, Tiles::kScorePitch, Tiles::kPitch>(gp, keys,
                                                                         [](int, int) { return true; });
      } else {
        sums.template add_rows<kRows, Tiles::kScorePitch, Tiles::kPitch>(
            gp, keys, [&](int i, int s) { return row[i].sees(s0 + s); });
      }
    }
#pragma unroll
    for (int i = 0; i < kR; ++i) {
      const int64_t t = t0 + ty + kSide * i;
      if (t < t_end) sums.store(i, gq.at(b, h) + t * gq.position, in.D);
    }
    __syncthreads();
  });
}

template <class T>
Heads<T> heads_or_null(Tensor& x) {
  return x.defined() ? Heads<T>(x.mutable_data<T>(), x) : Heads<T>();
}

}  // namespace

void CudaBackend::attention_backward(const Attention& args, const Tensor& y, const Tensor& lse,
                                     const Tensor& gy, Tensor& gq, Tensor& gk, Tensor& gv) {
  if (lse.numel() == 0) {  // nothing was seen: whatever keys and values there are get 0
    for (Tensor* g : {&gq, &gk, &gv}) {
      if (g->defined() && g->numel() > 0) fill(*g, 0);
    }
    return;
  }
  visit_floating(y.dtype(), "attention_backward", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    const Sight sight(args);
    const int64_t batches = y.size(0), D = y.size(3), queries = lse.numel();
    const Scratch delta(*this, queries * static_cast<int64_t>(sizeof(W)));
    const auto heads = [](const Tensor& x) { return Heads<const T>(x.data<T>(), x); };
    stream_.launch("attention_backward", grid_for(stream_, queries * kWarp), delta_kernel<T>, sight, queries,
                   D, heads(y), heads(gy), delta.as<W>());
    const BackwardInputs<T> in = {sight,
                                  batches,
                                  D,
                                  heads(args.q),
                                  heads(args.k),
                                  heads(args.v),
                                  heads(gy),
                                  lse.data<W>(),
                                  delta.as<W>(),
                                  static_cast<W>(args.scale)};
    if constexpr (std::is_same_v<T, bf16>) {
      if (D <= kMostBackwardWidth) return attention_backward_bf16(stream_, in, gq, gk, gv);
    }
    visit_width("attention_backward", D, [&]<int kD>(std::integral_constant<int, kD>) {
      using Tiles = BackwardTiles<W, kD>;
      const auto tiles = [](int64_t n) { return (n + Tiles::kRows - 1) / Tiles::kRows; };
      if (gk.defined() || gv.defined()) {
        const int64_t groups = batches * sight.G;
        stream_.launch("attention_backward",
                       grid_of_rows(groups * tiles(sight.S), kTileThreads, Tiles::bytes(2)),
                       key_gradient_kernel<T, kD>, in, groups, tiles(sight.S), heads_or_null<T>(gk),
                       heads_or_null<T>(gv));
      }
      if (gq.defined()) {
        const int64_t all = batches * sight.H;
        stream_.launch("attention_backward",
                       grid_of_rows(all * tiles(sight.T), kTileThreads, Tiles::bytes(1)),
                       query_gradient_kernel<T, kD>, in, all, tiles(sight.T), heads_or_null<T>(gq));
      }
    });
  });
}

}  // namespace tapehead
