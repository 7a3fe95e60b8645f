// The tensor cores' product that backends/cuda/mma.h takes from PTX.
#pragma once

#include <bit>

#include "cuda_runtime.h"

namespace cuda_emulator {

/// c (16, 8) += a (16, 16) · b (16, 8), in bf16 and f32, by the lanes of a warp; mma.h says which has what.
inline void multiply_add_16x8x16(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&c)[4]) {
  const auto word = [](uint32_t low, uint32_t high) { return low | uint64_t{high} << 32; };
  const auto number = [](uint64_t x, int i) {
    return std::bit_cast<float>(static_cast<uint32_t>(x >> (16 * i) & 0xffff) << 16);
  };
  const int lane = static_cast<int>(threadIdx.x) % warpSize, g = lane / 4, t = lane % 4;
  for (int j = 0; j < 4; ++j) {  // the lanes of a row, or of a column
    const uint64_t rows[2] = {__shfl_sync(0xffffffff, word(a[0], a[2]), 4 * g + j),
                              __shfl_sync(0xffffffff, word(a[1], a[3]), 4 * g + j)};
    const uint64_t columns[2] = {__shfl_sync(0xffffffff, word(b[0], b[1]), 8 * t + j),
                                 __shfl_sync(0xffffffff, word(b[0], b[1]), 8 * t + 4 + j)};
    for (int e = 0; e < 4; ++e) {
      for (int k = 0; k < 4; ++k) c[e] += number(rows[e / 2], k) * number(columns[e % 2], k);
    }
  }
}

}  // namespace cuda_emulator
