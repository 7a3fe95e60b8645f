// Attention of bf16, forward and backward, on tensor cores:
// the algorithms of attention.cu and attention_backward.cu.
#include "tapehead/backends/cuda/attention_bf16.h"

namespace tapehead {
namespace {

/// The reduction over the four lanes that have the same rows.
template <class Join>
__device__ float lane_row_reduce(float x, Join join) {
  x = join(x, __shfl_xor_sync(kAllLanes, x, 1));
  return join(x, __shfl_xor_sync(kAllLanes, x, 2));
}

/// Where this thread's numbers of a product stand: rows row() and row() + 8 of the tile, and column(n, e).
__device__ int warp_row() { return static_cast<int>(threadIdx.x) / kWarp * kMmaRows; }
__device__ int own_row() { return warp_row() + static_cast<int>(threadIdx.x) % kWarp / 4; }
__device__ int own_column(int n, int e) { return 8 * n + static_cast<int>(threadIdx.x) % 4 * 2 + e % 2; }

// ---- Forward: a block has a tile of one head's queries.

template <int kD>
struct ForwardTiles {
  static constexpr int kRows = kMmaTile * mma_pitch(kD), kColumns = kD * mma_pitch(kMmaTile);  // words
  static constexpr size_t kBytes = 4 * (2 * kRows + kColumns);
};

template <int kD>
__global__ void __launch_bounds__(kMmaThreads, 1)
    forward_kernel(Sight sight, int64_t heads, int64_t tiles, int64_t D, Heads<const bf16> q,
                   Heads<const bf16> k, Heads<const bf16> v, float scale, Heads<bf16> y, float* lse) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  uint32_t* queries = dynamic_shared<uint32_t>();
  uint32_t *keys = queries + ForwardTiles<kD>::kRows, *values = keys + ForwardTiles<kD>::kRows;

  for_each_row(heads * tiles, [&](int64_t unit) {
    const int64_t head = unit % heads, b = head / sight.H, h = head % sight.H, g = h / (sight.H / sight.G);
    const int64_t t0 = (tiles - 1 - unit / heads) * kMmaTile;  // those with the most keys begin first
    const int64_t t_end = t0 + kMmaTile < sight.T ? t0 + kMmaTile : sight.T;
    load_positions<kD, kMmaTile>(q.at(b, h), q.position, t0, sight.T, D, queries, nullptr);
    int64_t first[2], last[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t t = t0 + own_row() + 8 * i;
      first[i] = t < t_end ? sight.first(b, t) : 0;
      last[i] = t < t_end ? sight.last(t) : -1;
    }

    MmaSums<kD> sums = {};
    float largest[2] = {kLowest, kLowest}, total[2] = {};
    for (int64_t s0 = first_seen_by(sight, b, t0, t_end) / kMmaTile * kMmaTile; s0 <= sight.last(t_end - 1);
         s0 += kMmaTile) {
      const auto sees = [&](int i, int s) { return first[i] <= s0 + s && s0 + s <= last[i]; };
      __syncthreads();
      load_positions<kD, kMmaTile>(k.at(b, g), k.position, s0, sight.S, D, keys, nullptr);
      const bool left_out = __syncthreads_or(
          load_positions<kD, kMmaTile>(v.at(b, g), v.position, s0, sight.S, D, nullptr, values));
      MmaSums<kMmaTile> x;
      multiply_positions<kD, kMmaTile>(queries, warp_row(), keys, x);
      float now[2] = {largest[0], largest[1]}, base[2];
#pragma unroll
      for (int n = 0; n < kMmaTile / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          x[n][e] = sees(e / 2, own_column(n, e)) ? scale * x[n][e] : kLowest;
          now[e / 2] = x[n][e] > now[e / 2] ? x[n][e] : now[e / 2];
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        now[i] = lane_row_reduce(now[i], Larger());
        base[i] = now[i] == kLowest ? 0 : now[i];  // all scores -inf: so are their differences from 0
        const float factor = std::exp(largest[i] - base[i]);
        largest[i] = now[i];
        total[i] *= factor;
#pragma unroll
        for (int n = 0; n < kD / 8; ++n) {
          sums[n][2 * i] *= factor;
          sums[n][2 * i + 1] *= factor;
        }
      }
#pragma unroll
      for (int n = 0; n < kMmaTile / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          x[n][e] = std::exp(x[n][e] - base[e / 2]);
          total[e / 2] += x[n][e];
        }
      }
      add_positions<kD, kMmaTile>(x, values, sums);
      if (left_out) add_nonfinite<kD, kMmaTile>(x, v.at(b, g), v.position, s0, sight.S, D, sees, sums);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t t = t0 + own_row() + 8 * i;
      const float sum = lane_row_reduce(total[i], Add());
#pragma unroll
      for (int n = 0; n < kD / 8; ++n) {
        sums[n][2 * i] *= 1 / sum;
        sums[n][2 * i + 1] *= 1 / sum;
      }
      if (t >= t_end) continue;
      store_row<kD>(sums, i, y.at(b, h) + t * y.position, D);
      if (threadIdx.x % 4 == 0) lse[head * sight.T + t] = largest[i] + std::log(sum);
    }
    __syncthreads();
  });
}

// ---- Backward

/// Scores x and their gradients gx become P and scale · P · (gP - delta); 0 where a number is not seen.
template <int kRows, class Query, class Sees>
__device__ void softmax_gradient(float scale, Query&& query, Sees&& sees, MmaSums<kRows>& x,
                                 MmaSums<kRows>& gx) {
#pragma unroll
  for (int n = 0; n < kRows / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const bool seen = sees(e / 2, own_column(n, e));
      const float2 lse_delta = query(n, e);
      x[n][e] = seen ? std::exp(scale * x[n][e] - lse_delta.x) : 0;
      gx[n][e] = seen ? scale * x[n][e] * (gx[n][e] - lse_delta.y) : 0;
    }
  }
}

// gk and gv: a block has a tile of keys, the rows of its products; queries come by.
template <int kD>
struct KeyTiles {
  static constexpr int kQueries = 64;
  static constexpr int kOwn = kMmaTile * mma_pitch(kD), kRows = kQueries * mma_pitch(kD),
                       kColumns = kD * mma_pitch(kQueries);
  static constexpr size_t kBytes = 4 * (2 * kOwn + 2 * kRows + 2 * kColumns);
};

template <int kD>
__global__ void __launch_bounds__(kMmaThreads, 1)
    key_gradient_kernel(BackwardInputs<bf16> in, int64_t heads, int64_t tiles, Heads<bf16> gk,
                        Heads<bf16> gv) {
  using Tiles = KeyTiles<kD>;
  constexpr int kQueries = Tiles::kQueries;
  __shared__ float lse[kQueries], delta[kQueries];
  __shared__ int64_t first[kQueries], last[kQueries];
  const Sight& sight = in.sight;
  uint32_t* keys = dynamic_shared<uint32_t>();
  uint32_t *values = keys + Tiles::kOwn, *q_rows = values + Tiles::kOwn, *up_rows = q_rows + Tiles::kRows;
  uint32_t *q_columns = up_rows + Tiles::kRows, *up_columns = q_columns + Tiles::kColumns;

  for_each_row(heads * tiles, [&](int64_t unit) {
    const int64_t b = unit % heads / sight.G, g = unit % heads % sight.G, s0 = unit / heads * kMmaTile;
    load_positions<kD, kMmaTile>(in.k.at(b, g), in.k.position, s0, sight.S, in.D, keys, nullptr);
    load_positions<kD, kMmaTile>(in.v.at(b, g), in.v.position, s0, sight.S, in.D, values, nullptr);
    MmaSums<kD> k_sums = {}, v_sums = {};
    const int64_t before = s0 - (sight.S - sight.T);  // the first query that sees key s0, where it is causal
    const int64_t from = sight.causal && before > 0 ? before / kQueries * kQueries : 0;
    const int64_t group = sight.H / sight.G;
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      for (int64_t t0 = from; t0 < sight.T; t0 += kQueries) {
        __syncthreads();
        bool any = false;
        if (static_cast<int>(threadIdx.x) < kQueries) {
          const int64_t t = t0 + threadIdx.x, row = (b * sight.H + h) * sight.T + t;
          const bool is = t < sight.T;
          first[threadIdx.x] = is ? sight.first(b, t) : 0;
          last[threadIdx.x] = is ? sight.last(t) : -1;
          lse[threadIdx.x] = is ? in.lse[row] : 0;
          delta[threadIdx.x] = is ? in.delta[row] : 0;
          any = first[threadIdx.x] < s0 + kMmaTile && last[threadIdx.x] >= s0;
        }
        if (!__syncthreads_or(any)) continue;
        const bool q_left_out =
            load_positions<kD, kQueries>(in.q.at(b, h), in.q.position, t0, sight.T, in.D, q_rows, q_columns);
        const bool up_left_out = load_positions<kD, kQueries>(in.gy.at(b, h), in.gy.position, t0, sight.T,
                                                              in.D, up_rows, up_columns);
        const bool left_out = __syncthreads_or(q_left_out || up_left_out);
        const auto sees = [&](int i, int t) {
          const int64_t s = s0 + own_row() + 8 * i;
          return first[t] <= s && s <= last[t];
        };
        MmaSums<kQueries> x, gx;
        multiply_positions<kD, kQueries>(keys, warp_row(), q_rows, x);
        multiply_positions<kD, kQueries>(values, warp_row(), up_rows, gx);
        softmax_gradient<kQueries>(
            in.scale,
            [&](int n, int e) {
              return float2{lse[own_column(n, e)], delta[own_column(n, e)]};
            },
            sees, x, gx);
        add_positions<kD, kQueries>(x, up_columns, v_sums);
        add_positions<kD, kQueries>(gx, q_columns, k_sums);
        if (left_out) {
          add_nonfinite<kD, kQueries>(x, in.gy.at(b, h), in.gy.position, t0, sight.T, in.D, sees, v_sums);
          add_nonfinite<kD, kQueries>(gx, in.q.at(b, h), in.q.position, t0, sight.T, in.D, sees, k_sums);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t s = s0 + own_row() + 8 * i;
      if (s >= sight.S) continue;
      if (gk.data) store_row<kD>(k_sums, i, gk.at(b, g) + s * gk.position, in.D);
      if (gv.data) store_row<kD>(v_sums, i, gv.at(b, g) + s * gv.position, in.D);
    }
    __syncthreads();
  });
}

// gq: a block has a tile of queries, the rows of its products; keys come by.
template <int kD>
struct QueryTiles {
  static constexpr int kRows = kMmaTile * mma_pitch(kD), kColumns = kD * mma_pitch(kMmaTile);
  static constexpr size_t kBytes = 4 * (4 * kRows + kColumns);
};

template <int kD>
__global__ void __launch_bounds__(kMmaThreads, 1)
    query_gradient_kernel(BackwardInputs<bf16> in, int64_t heads, int64_t tiles, Heads<bf16> gq) {
  using Tiles = QueryTiles<kD>;
  const Sight& sight = in.sight;
  uint32_t* queries = dynamic_shared<uint32_t>();
  uint32_t *ups = queries + Tiles::kRows, *keys = ups + Tiles::kRows, *values = keys + Tiles::kRows;
  uint32_t* key_columns = values + Tiles::kRows;

  for_each_row(heads * tiles, [&](int64_t unit) {
    const int64_t b = unit % heads / sight.H, h = unit % heads % sight.H, g = h / (sight.H / sight.G);
    const int64_t t0 = (tiles - 1 - unit / heads) * kMmaTile;
    const int64_t t_end = t0 + kMmaTile < sight.T ? t0 + kMmaTile : sight.T;
    load_positions<kD, kMmaTile>(in.q.at(b, h), in.q.position, t0, sight.T, in.D, queries, nullptr);
    load_positions<kD, kMmaTile>(in.gy.at(b, h), in.gy.position, t0, sight.T, in.D, ups, nullptr);
    int64_t first[2], last[2];
    float2 lse_delta[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t t = t0 + own_row() + 8 * i, row = (b * sight.H + h) * sight.T + t;
      const bool is = t < t_end;
      first[i] = is ? sight.first(b, t) : 0;
      last[i] = is ? sight.last(t) : -1;
      lse_delta[i] = is ? float2{in.lse[row], in.delta[row]} : float2{0, 0};
    }
    MmaSums<kD> sums = {};
    for (int64_t s0 = first_seen_by(sight, b, t0, t_end) / kMmaTile * kMmaTile; s0 <= sight.last(t_end - 1);
         s0 += kMmaTile) {
      const auto sees = [&](int i, int s) { return first[i] <= s0 + s && s0 + s <= last[i]; };
      __syncthreads();
      load_positions<kD, kMmaTile>(in.v.at(b, g), in.v.position, s0, sight.S, in.D, values, nullptr);
      const bool left_out = __syncthreads_or(
          load_positions<kD, kMmaTile>(in.k.at(b, g), in.k.position, s0, sight.S, in.D, keys, key_columns));
      MmaSums<kMmaTile> x, gx;
      multiply_positions<kD, kMmaTile>(queries, warp_row(), keys, x);
      multiply_positions<kD, kMmaTile>(ups, warp_row(), values, gx);
      softmax_gradient<kMmaTile>(
          in.scale, [&](int, int e) { return lse_delta[e / 2]; }, sees, x, gx);
      add_positions<kD, kMmaTile>(gx, key_columns, sums);
      if (left_out)
        add_nonfinite<kD, kMmaTile>(gx, in.k.at(b, g), in.k.position, s0, sight.S, in.D, sees, sums);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t t = t0 + own_row() + 8 * i;
      if (t < t_end) store_row<kD>(sums, i, gq.at(b, h) + t * gq.position, in.D);
    }
    __syncthreads();
  });
}

int64_t tiles_of(int64_t positions) { return (positions + kMmaTile - 1) / kMmaTile; }

Heads<const bf16> heads_of(const Tensor& x) { return {x.data<bf16>(), x}; }

Heads<bf16> heads_or_null(Tensor& x) {
  return x.defined() ? Heads<bf16>(x.mutable_data<bf16>(), x) : Heads<bf16>();
}

}  // namespace

void attention_bf16(Stream& stream, const Attention& args, Tensor& y, Tensor& lse) {
  const int64_t D = y.size(3);
  visit_mma_width<kMostForwardWidth>(D, [&]<int kD>(std::integral_constant<int, kD>) {
    const Sight sight(args);
    const int64_t heads = y.size(0) * sight.H, tiles = tiles_of(sight.T);
    stream.launch("attention", grid_of_rows(heads * tiles, kMmaThreads, ForwardTiles<kD>::kBytes),
                  forward_kernel<kD>, sight, heads, tiles, D, heads_of(args.q), heads_of(args.k),
                  heads_of(args.v), static_cast<float>(args.scale), heads_or_null(y),
                  lse.mutable_data<float>());
  });
}

void attention_backward_bf16(Stream& stream, const BackwardInputs<bf16>& in, Tensor& gq, Tensor& gk,
                             Tensor& gv) {
  visit_mma_width<kMostBackwardWidth>(in.D, [&]<int kD>(std::integral_constant<int, kD>) {
    const int64_t key_heads = in.batches * in.sight.G, key_tiles = tiles_of(in.sight.S);
    const int64_t query_heads = in.batches * in.sight.H, query_tiles = tiles_of(in.sight.T);
    if (gk.defined() || gv.defined()) {
      stream.launch("attention_backward",
                    grid_of_rows(key_heads * key_tiles, kMmaThreads, KeyTiles<kD>::kBytes),
                    key_gradient_kernel<kD>, in, key_heads, key_tiles, heads_or_null(gk), heads_or_null(gv));
    }
    if (gq.defined()) {
      stream.launch("attention_backward",
                    grid_of_rows(query_heads * query_tiles, kMmaThreads, QueryTiles<kD>::kBytes),
                    query_gradient_kernel<kD>, in, query_heads, query_tiles, heads_or_null(gq));
    }
  });
}

}  // namespace tapehead
