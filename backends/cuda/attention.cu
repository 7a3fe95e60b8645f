// Attention, forward: a block has a tile of one head's queries, and the keys come by in tiles.
//
// For every query, the largest score so far and the sum of exponentials relative to it are kept; when a tile
// brings a larger score, what was summed is scaled down (the online softmax). What a query does not see is
// never multiplied: a NaN there does not reach it.
#include <cmath>

#include "tapehead/backends/cuda/attention_bf16.h"

namespace tapehead {
namespace {

template <class W, int kD>
struct ForwardTiles {
  static constexpr int kRows = tile_rows<W, kD>(32 << 10), kR = kRows / kSide;
  static constexpr int kPitch = tile_pitch<W>(kD), kScorePitch = tile_pitch<W>(kRows);
  static constexpr size_t kBytes = (2 * kRows * kPitch + kRows * kScorePitch) * sizeof(W);
};

template <class T, int kD>
__global__ void __launch_bounds__(kTileThreads, 1)
    attention_kernel(Sight sight, int64_t heads, int64_t tiles, int64_t D, Heads<const T> q, Heads<const T> k,
                     Heads<const T> v, wide_t<T> scale, Heads<T> y, wide_t<T>* lse) {
  using W = wide_t<T>;
  using Tiles = ForwardTiles<W, kD>;
  constexpr int kRows = Tiles::kRows, kR = Tiles::kR;
  constexpr W kLowest = -std::numeric_limits<W>::infinity();
  W* queries = dynamic_shared<W>();
  W* others = queries + kRows * Tiles::kPitch;  // keys, then their values
  W* scores = others + kRows * Tiles::kPitch;
  const int tx = static_cast<int>(threadIdx.x) % kSide, ty = static_cast<int>(threadIdx.x) / kSide;

  for_each_row(heads * tiles, [&](int64_t unit) {
    const int64_t head = unit % heads, b = head / sight.H, h = head % sight.H, g = h / (sight.H / sight.G);
    const int64_t t0 = (tiles - 1 - unit / heads) * kRows;  // those with the most keys begin first
    const int64_t t_end = t0 + kRows < sight.T ? t0 + kRows : sight.T;
    load_tile<kD, kRows>(q.at(b, h), q.position, t0, sight.T, D, queries);

    // What the tile's queries see together, and what each of this thread's does.
    const int64_t from = first_seen_by(sight, b, t0, t_end);
    int64_t first[kR], last[kR];
#pragma unroll
    for (int i = 0; i < kR; ++i) {
      const int64_t t = t0 + ty + kSide * i;
      first[i] = t < t_end ? sight.first(b, t) : 0;
      last[i] = t < t_end ? sight.last(t) : -1;
    }

    HeadSums<W, kD, kR> sums;
    W largest[kR], total[kR] = {};
#pragma unroll
    for (int i = 0; i < kR; ++i) largest[i] = kLowest;
    for (int64_t s0 = from / kRows * kRows; s0 <= sight.last(t_end - 1); s0 += kRows) {
      __syncthreads();
      load_tile<kD, kRows>(k.at(b, g), k.position, s0, sight.S, D, others);
      __syncthreads();
      W x[kR][kR];
      multiply_heads<kD>(queries, others, D, x);
      bool all = true;  // whether all of this thread's scores are seen
#pragma unroll
      for (int i = 0; i < kR; ++i) {
        const W before = largest[i];
#pragma unroll
        for (int j = 0; j < kR; ++j) {
          const int64_t s = s0 + tx + kSide * j;
          const bool seen = first[i] <= s && s <= last[i];
          all = all && seen;
          x[i][j] = seen ? scale * x[i][j] : kLowest;
          largest[i] = x[i][j] > largest[i] ? x[i][j] : largest[i];
        }
        largest[i] = row_reduce(largest[i], Larger());
        // While all scores are -inf, so are their differences from 0.
        const W base = largest[i] == kLowest ? W{0} : largest[i];
        const W factor = std::exp(before - base);
        total[i] *= factor;
        sums.scale(i, factor);
#pragma unroll
        for (int j = 0; j < kR; ++j) {
          x[i][j] = std::exp(x[i][j] - base);
          total[i] += x[i][j];
          scores[(ty + kSide * i) * Tiles::kScorePitch + tx + kSide * j] = x[i][j];
        }
      }
      all = __syncthreads_and(all);  // the keys are done with, and the scores are there
      load_tile<kD, kRows>(v.at(b, g), v.position, s0, sight.S, D, others);
      __syncthreads();
      if (all) {
        sums.template add_rows<kRows, Tiles::kScorePitch, Tiles::kPitch>(scores, others,
                                                                         [](int, int) { return true; });
      } else {
        sums.template add_rows<kRows, Tiles::kScorePitch, Tiles::kPitch>(
            scores, others, [&](int i, int s) { return first[i] <= s0 + s && s0 + s <= last[i]; });
      }
    }
#pragma unroll
    for (int i = 0; i < kR; ++i) {
      const int64_t t = t0 + ty + kSide * i;
      const W sum = row_reduce(total[i], Add());
      if (t >= t_end) continue;
      sums.scale(i, 1 / sum);
      sums.store(i, y.at(b, h) + t * y.position, D);
      if (tx == 0) lse[head * sight.T + t] = largest[i] + std::log(sum);
    }
    __syncthreads();
  });
}

}  // namespace

void CudaBackend::attention(const Attention& args, Tensor& y, Tensor& lse) {
  if (lse.numel() == 0) return;
  visit_floating(y.dtype(), "attention", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    const int64_t D = y.size(3);
    if constexpr (std::is_same_v<T, bf16>) {
      if (D <= kMostForwardWidth) return attention_bf16(stream_, args, y, lse);
    }
    visit_width("attention", D, [&]<int kD>(std::integral_constant<int, kD>) {
      using Tiles = ForwardTiles<W, kD>;
      const Sight sight(args);
      const int64_t heads = y.size(0) * sight.H, tiles = (sight.T + Tiles::kRows - 1) / Tiles::kRows;
      stream_.launch("attention", grid_of_rows(heads * tiles, kTileThreads, Tiles::kBytes),
                     attention_kernel<T, kD>, sight, heads, tiles, D,
                     Heads<const T>(args.q.data<T>(), args.q), Heads<const T>(args.k.data<T>(), args.k),
                     Heads<const T>(args.v.data<T>(), args.v), static_cast<W>(args.scale),
                     Heads<T>(y.mutable_data<T>(), y), lse.mutable_data<W>());
    });
  });
}

}  // namespace tapehead
