// The tensor cores' product that backends/cuda/mma.h takes from PTX.
#pragma once

#include <bit>

#include "cuda_runtime.h"

namespace cuda_emulator {

/// c (16, 8) += a (16, 16) · b (16, 8), in bf16 and f32, by the lanes of a warp; mma.h says which has what.
inline void multiply_add_16x8x16(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&c)[4]) {
  // What each lane of each warp brings: its numbers of a, and of b.
  __shared__ float brought[32][warpSize][12];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % warpSize, g = lane / 4, t = lane % 4;
  auto& of_warp = brought[thread / warpSize];
  for (int i = 0; i < 12; ++i) {
    const uint32_t word = i < 8 ? a[i / 2] : b[(i - 8) / 2];
    of_warp[lane][i] = std::bit_cast<float>(i % 2 ? word & 0xffff0000 : word << 16);
  }
  __syncwarp();
  for (int j = 0; j < 4; ++j) {  // the lanes of a row, or of a column
    for (int e = 0; e < 4; ++e) {
      const float *row = of_warp[4 * g + j] + e / 2 * 2, *column = of_warp[8 * t + e % 2 * 4 + j] + 8;
      c[e] += row[0] * column[0];
      c[e] += row[1] * column[1];
      c[e] += row[4] * column[2];
      c[e] += row[5] * column[3];
    }
  }
  __syncwarp();
}

}  // namespace cuda_emulator
