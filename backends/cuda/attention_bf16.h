// Attention of bf16 on tensor cores: what its kernels share, and the functions that launch them.
//
// A block has four warps, each with 16 rows of every product. Tiles hold bf16 as they
// are, two in a word. Where a product sums over positions, its second factor is held
// by columns; and there NaN and infinities are left out, because 0 · NaN would carry
// them to positions that do not see them. add_nonfinite() adds them where they belong.
#pragma once

#include <bit>
#include <cmath>

#include "tapehead/backends/cuda/attention_tile.h"
#include "tapehead/backends/cuda/cuda_backend.h"
#include "tapehead/backends/cuda/mma.h"

namespace tapehead {

constexpr int kMmaRows = 16, kMmaWarps = 4;
constexpr unsigned kMmaThreads = kMmaWarps * kWarp;
constexpr int kMmaTile = kMmaRows * kMmaWarps;                       // positions that a block has
constexpr int64_t kMostForwardWidth = 128, kMostBackwardWidth = 64;  // beyond, sums do not fit the registers

/// Words from row to row of a tile of `width` numbers: the
/// lanes of load_a and load_b fall on different banks.
constexpr int mma_pitch(int width) { return width / 2 + 4; }

__device__ inline bool is_nonfinite(uint16_t bits) { return (bits & 0x7f80) == 0x7f80; }

/// Eight numbers of a row of D, from `column` on; 0 beyond.
__device__ inline void load_bits(const bf16* row, int column, int64_t D, uint32_t (&x)[4]) {
  const bf16* p = row + column;
  if (column + kOctet <= D && is_aligned_for<uint4>(p)) {
    const uint4 all = *reinterpret_cast<const uint4*>(p);
    x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t first = column + 2 * i < D ? p[2 * i].bits : 0,
                   second = column + 2 * i + 1 < D ? p[2 * i + 1].bits : 0;
    x[i] = first | second << 16;
  }
}

/// Loads positions [first, first + kRows) of the n at `head`, zeros beyond: to
/// `rows` as they are, (kRows, kD); to `columns`, (kD, kRows), only what is
/// finite. Either may be null. Returns whether this thread left something out.
template <int kD, int kRows>
__device__ bool load_positions(const bf16* head, int64_t stride, int64_t first, int64_t n, int64_t D,
                               uint32_t* rows, uint32_t* columns) {
  constexpr int kPairs = kRows / 2;
  bool left_out = false;
  for (int unit = static_cast<int>(threadIdx.x); unit < kPairs * kD / kOctet;
       unit += static_cast<int>(kMmaThreads)) {
    const int position = unit % kPairs * 2, column = unit / kPairs * kOctet;
    uint32_t x[2][4] = {};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (first + position + k < n) load_bits(head + (first + position + k) * stride, column, D, x[k]);
      if (!rows) continue;
      uint32_t* to = rows + (position + k) * mma_pitch(kD) + column / 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = x[k][i];
    }
    if (!columns) continue;
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      uint32_t a = x[0][i / 2] >> (16 * (i % 2)) & 0xffff, b = x[1][i / 2] >> (16 * (i % 2)) & 0xffff;
      if (is_nonfinite(static_cast<uint16_t>(a))) a = 0, left_out = true;
      if (is_nonfinite(static_cast<uint16_t>(b))) b = 0, left_out = true;
      columns[(column + i) * mma_pitch(kRows) + position / 2] = a | b << 16;
    }
  }
  return left_out;
}

/// A warp's 16 rows of a product, N columns: number [n][e] of lane
/// 4 · g + t is row g + 8 · (e / 2), column 8 · n + 2 · t + e % 2.
template <int N>
using MmaSums = float[N / 8][4];

/// c = a · bᵀ, rows [row, row + 16) of a by kRows positions of b, both (positions, kD).
template <int kD, int kRows>
__device__ inline void multiply_positions(const uint32_t* a, int row, const uint32_t* b, MmaSums<kRows>& c) {
#pragma unroll
  for (int n = 0; n < kRows / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) c[n][e] = 0;
  }
#pragma unroll
  for (int kk = 0; kk < kD / 16; ++kk) {
    uint32_t x[4];
    load_a(a, mma_pitch(kD), row, kk, x);
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) {
      uint32_t y[2];
      load_b(b, mma_pitch(kD), n * 8, kk, y);
      multiply_add_16x8x16(x, y, c[n]);
    }
  }
}

/// c += p · b over kRows positions, for b held by columns, (kD, kRows).
template <int kD, int kRows>
__device__ inline void add_positions(const MmaSums<kRows>& p, const uint32_t* columns, MmaSums<kD>& c) {
#pragma unroll
  for (int kk = 0; kk < kRows / 16; ++kk) {
    uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // c's layout, in two blocks of 8 columns, is a's
      const float* from = p[2 * kk + i / 2] + i % 2 * 2;
      const SplitPair pair(from[0], from[1]);
      high[i] = pair.high;
      low[i] = pair.low;
    }
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
      uint32_t y[2];
      load_b(columns, mma_pitch(kRows), n * 8, kk, y);
      multiply_add_16x8x16(high, y, c[n]);
      multiply_add_16x8x16(low, y, c[n]);
    }
  }
}

/// Adds to c the products that load_positions() left out, where
/// sees(i, k): whether row g + 8 · i of p sees position k.
template <int kD, int kRows, class Sees>
__device__ void add_nonfinite(const MmaSums<kRows>& p, const bf16* head, int64_t stride, int64_t first,
                              int64_t n, int64_t D, Sees&& sees, MmaSums<kD>& c) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll 1
  for (int k = 0; k < kRows && first + k < n; ++k) {
    // Of column k, in the lane that has it. By masks: a choice between elements becomes an index, and what is
    // indexed stands in memory.
    uint32_t own[2] = {};
#pragma unroll
    for (int block = 0; block < kRows / 8; ++block) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint32_t mask = block == k / 8 && e % 2 == k % 2 ? ~0u : 0;
        own[e / 2] |= std::bit_cast<uint32_t>(p[block][e]) & mask;
      }
    }
    const bf16* row = head + (first + k) * stride;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float factor = __shfl_sync(kAllLanes, std::bit_cast<float>(own[i]), lane / 4 * 4 + k % 8 / 2);
      if (!sees(i, k)) continue;
#pragma unroll
      for (int block = 0; block < kD / 8; ++block) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int d = block * 8 + lane % 4 * 2 + e;
          if (d < D && is_nonfinite(row[d].bits)) c[block][2 * i + e] += factor * widen(row[d]);
        }
      }
    }
  }
}

/// Writes row g + 8 · i of c, D wide.
template <int kD>
__device__ inline void store_row(const MmaSums<kD>& c, int i, bf16* row, int64_t D) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int n = 0; n < kD / 8; ++n) {
    const float x[2] = {c[n][2 * i], c[n][2 * i + 1]};
    store_within(row, n * 8 + 2 * t, D, x);
  }
}

/// Calls f with the smallest width that holds D <= kMost, as an integral constant.
template <int64_t kMost, class F>
void visit_mma_width(int64_t D, F&& f) {
  if (D <= 32) return f(std::integral_constant<int, 32>());
  if (D <= 64) return f(std::integral_constant<int, 64>());
  if constexpr (kMost > 64) f(std::integral_constant<int, 128>());
}

/// What a backward reads.
template <class T>
struct BackwardInputs {
  using W = wide_t<T>;
  Sight sight;
  int64_t batches, D;
  Heads<const T> q, k, v, gy;
  const W *lse, *delta;  // (B, H, T); delta = Σ_d y · gy
  W scale;
};

/// Backend::attention and attention_backward for bf16 of width <= kMostForwardWidth, kMostBackwardWidth.
void attention_bf16(Stream& stream, const Attention& args, Tensor& y, Tensor& lse);
void attention_backward_bf16(Stream& stream, const BackwardInputs<bf16>& in, Tensor& gq, Tensor& gk,
                             Tensor& gv);

}  // namespace tapehead
