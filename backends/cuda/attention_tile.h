// What the kernels of attention share: heads in memory, tiles of them in shared memory, and their products.
//
// Device code. A block has 256 threads, seen as 16 by 16: thread (ty, tx) is tid = 16 · ty + tx. Tiles are
// square in positions: kRows queries by kRows keys, each thread with kRows / 16 of both. A tile of heads has
// kRows rows of kD numbers of W, zeros beyond what there is.
#pragma once

#include <cstdint>

#include "tapehead/backends/backend.h"
#include "tapehead/backends/cuda/octet.h"

namespace tapehead {

constexpr int kSide = 16;
constexpr unsigned kTileThreads = kSide * kSide;

/// (B, heads, positions, D) of T, dense along D: strides of the others.
template <class T>
struct Heads {
  T* data = nullptr;
  int64_t batch = 0, head = 0, position = 0;

  Heads() = default;
  Heads(T* first, const Tensor& x)
      : data(first), batch(x.strides()[0]), head(x.strides()[1]), position(x.strides()[2]) {}
  __device__ T* at(int64_t b, int64_t h) const { return data + b * batch + h * head; }
};

/// Which keys the queries see, as a kernel's parameter: Attention, backends/backend.h.
struct Sight {
  int64_t H, G, T, S;
  bool causal;
  const int64_t* first_seen;

  explicit Sight(const Attention& args)
      : H(args.q.size(1)),
        G(args.k.size(1)),
        T(args.q.size(2)),
        S(args.k.size(2)),
        causal(args.causal),
        first_seen(args.first_seen.defined() ? args.first_seen.data<int64_t>() : nullptr) {}

  /// Query t of batch b sees keys [first(b, t), last(t)].
  __device__ int64_t first(int64_t b, int64_t t) const { return first_seen ? first_seen[b * T + t] : 0; }
  __device__ int64_t last(int64_t t) const { return causal ? S - T + t : S - 1; }
};

/// The first key that any of queries [begin, end) sees.
__device__ inline int64_t first_seen_by(const Sight& sight, int64_t b, int64_t begin, int64_t end) {
  int64_t first = sight.S;
  for (int64_t t = begin; t < end && first > 0; ++t) {
    const int64_t one = sight.first(b, t);
    first = one < first ? one : first;
  }
  return first;
}

/// Numbers of W from row to row of a tile of `width`: rows stay
/// aligned to 16 bytes, and neighbours fall on other banks.
template <class W>
constexpr int tile_pitch(int width) {
  return width + 16 / static_cast<int>(sizeof(W));
}

/// Rows of kD numbers in a tile of about `bytes`: a power of two from 16 to 64.
template <class W, int kD>
constexpr int tile_rows(int bytes) {
  const int fit = bytes / (kD * static_cast<int>(sizeof(W)));
  return fit >= 64 ? 64 : fit >= 32 ? 32 : 16;
}

/// tile = positions [first, first + kRows) of the n at `head`, D wide.
template <int kD, int kRows, class T, class W>
__device__ void load_tile(const T* head, int64_t stride, int64_t first, int64_t n, int64_t D, W* tile) {
  for (int k = static_cast<int>(threadIdx.x); k < kRows * kD / kOctet; k += static_cast<int>(kTileThreads)) {
    const int row = k / (kD / kOctet), column = k % (kD / kOctet) * kOctet;
    W x[kOctet] = {};
    if (first + row < n) load_within(head + (first + row) * stride, column, D, W{0}, x);
    store_aligned(tile + row * tile_pitch<W>(kD) + column, x);
  }
}

/// result[i][j] = Σ_d a[ty + 16 i][d] · b[tx + 16 j][d] over d < D.
template <int kD, int kR, class W>
__device__ void multiply_heads(const W* a, const W* b, int64_t D, W (&result)[kR][kR]) {
  constexpr int kStep = 4, kPitch = tile_pitch<W>(kD);
  const int tx = static_cast<int>(threadIdx.x) % kSide, ty = static_cast<int>(threadIdx.x) / kSide;
#pragma unroll
  for (int i = 0; i < kR; ++i) {
#pragma unroll
    for (int j = 0; j < kR; ++j) result[i][j] = 0;
  }
  for (int d = 0; d < static_cast<int>(D); d += kStep) {
    W x[kR][kStep], y[kR][kStep];
#pragma unroll
    for (int i = 0; i < kR; ++i) {
      load_aligned(a + (ty + kSide * i) * kPitch + d, x[i]);
      load_aligned(b + (tx + kSide * i) * kPitch + d, y[i]);
    }
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
#pragma unroll
      for (int i = 0; i < kR; ++i) {
#pragma unroll
        for (int j = 0; j < kR; ++j) result[i][j] += x[i][k] * y[j][k];
      }
    }
  }
}

/// A thread's part of a sum of heads, kR rows by kD / 16
/// columns: number (i, j, e) is column column(j) + e of row i.
template <class W, int kD, int kR>
struct HeadSums {
  static constexpr int kRun = kD / kSide < 4 ? kD / kSide : 4;  // neighbours
  static constexpr int kRuns = kD / kSide / kRun;

  W at[kR][kRuns][kRun] = {};

  __device__ static int column(int j) { return (j * kSide + static_cast<int>(threadIdx.x) % kSide) * kRun; }

  /// at[i] += factor[i] · a row of a tile, for those i that `counts` says.
  template <class Counts>
  __device__ void add(const W (&factor)[kR], const W* row, Counts&& counts) {
#pragma unroll
    for (int j = 0; j < kRuns; ++j) {
      W x[kRun];
      load_aligned(row + column(j), x);
#pragma unroll
      for (int i = 0; i < kR; ++i) {
        if (!counts(i)) continue;
#pragma unroll
        for (int e = 0; e < kRun; ++e) at[i][j][e] += factor[i] * x[e];
      }
    }
  }

  /// at[i] += Σ_s a[ty + 16 i][s] · row s of b, over those s < kRows for which counts(i, s).
  template <int kRows, int kPitchA, int kPitchB, class Counts>
  __device__ void add_rows(const W* a, const W* b, Counts&& counts) {
    constexpr int kStep = 4;
    const int ty = static_cast<int>(threadIdx.x) / kSide;
    for (int s = 0; s < kRows; s += kStep) {
      W x[kR][kStep];
#pragma unroll
      for (int i = 0; i < kR; ++i) load_aligned(a + (ty + kSide * i) * kPitchA + s, x[i]);
#pragma unroll
      for (int e = 0; e < kStep; ++e) {
        W factor[kR];
#pragma unroll
        for (int i = 0; i < kR; ++i) factor[i] = x[i][e];
        add(factor, b + (s + e) * kPitchB, [&](int i) { return counts(i, s + e); });
      }
    }
  }

  __device__ void scale(int i, W factor) {
#pragma unroll
    for (int j = 0; j < kRuns; ++j) {
#pragma unroll
      for (int e = 0; e < kRun; ++e) at[i][j][e] *= factor;
    }
  }

  /// Writes row i, D wide.
  template <class T>
  __device__ void store(int i, T* row, int64_t D) const {
#pragma unroll
    for (int j = 0; j < kRuns; ++j) store_within(row, column(j), D, at[i][j]);
  }
};

/// The reduction over the 16 threads that have the same rows.
template <class W, class Join>
__device__ W row_reduce(W x, Join join) {
#pragma unroll
  for (int distance = kSide / 2; distance > 0; distance /= 2)
    x = join(x, __shfl_xor_sync(kAllLanes, x, distance));
  return x;
}

/// Calls f with the smallest width that kernels are made for and that
/// holds D, as an integral constant. Throws ValueError beyond 256.
template <class F>
void visit_width(const char* op, int64_t D, F&& f) {
  check<ValueError>(D <= 256, "[{}] heads of width {}: on cuda they are at most 256 wide", op, D);
  if (D <= 32) return f(std::integral_constant<int, 32>());
  if (D <= 64) return f(std::integral_constant<int, 64>());
  if (D <= 128) return f(std::integral_constant<int, 128>());
  f(std::integral_constant<int, 256>());
}

}  // namespace tapehead
