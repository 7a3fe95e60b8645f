// Products of bf16 on tensor cores, a warp at a time: c (16, 8) += a (16, 16) · b (16, 8), in f32.
//
// Lane 4 · g + t of the warp holds of c (rows g, g + 8; columns 2t, 2t + 1), of a (the same rows; k = 2t,
// 2t + 1, 2t + 8, 2t + 9) and of b (column g; the same k), two numbers of bf16 in a word, the one of smaller
// k in its lower half (PTX's mma.m16n8k16).
#pragma once

#ifndef __CUDACC__
#include <cuda_mma.h>  // the emulator's
#endif

#include <cstdint>

#include "tapehead/backends/cuda/launch.h"

namespace tapehead {

__device__ inline void multiply_add_16x8x16(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&c)[4]) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, "
      "%2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  cuda_emulator::multiply_add_16x8x16(a, b, c);
#endif
}

/// Two numbers as bf16, and what their rounding left, as bf16 too: together 16 bits of each, so that a
/// product with both is as good as one in f32 before it is rounded to bf16.
struct SplitPair {
  uint32_t high, low;

  __device__ SplitPair(float first, float second) {
    const bf16 a = narrow<bf16>(first), b = narrow<bf16>(second);
    high = pair(a, b);
    low = pair(narrow<bf16>(first - widen(a)), narrow<bf16>(second - widen(b)));
  }

 private:
  __device__ static uint32_t pair(bf16 a, bf16 b) { return a.bits | static_cast<uint32_t>(b.bits) << 16; }
};

/// The a of rows [row, row + 16) and k [16 · kk, 16 · kk + 16)
/// of a tile whose rows are `pitch` words of two apart.
__device__ inline void load_a(const uint32_t* tile, int pitch, int row, int kk, uint32_t (&a)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint32_t* at = tile + (row + lane / 4) * pitch + kk * 8 + lane % 4;
  a[0] = at[0];
  a[1] = at[8 * pitch];
  a[2] = at[4];
  a[3] = at[8 * pitch + 4];
}

/// The b of columns [column, column + 8) and the same k; the tile's rows are b's columns.
__device__ inline void load_b(const uint32_t* tile, int pitch, int column, int kk, uint32_t (&b)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint32_t* at = tile + (column + lane / 4) * pitch + kk * 8 + lane % 4;
  b[0] = at[0];
  b[1] = at[4];
}

}  // namespace tapehead
