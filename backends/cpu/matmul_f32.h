// Products of f32 through oneDNN.
#pragma once

#include "tapehead/backends/matrix_layout.h"

namespace tapehead {

/// y = alpha · a·b + beta · y, (M, K)·(K, N) -> (M, N), and y is not read if beta is 0. y's rows are dense,
/// y_leading elements apart. Each thread computes a tile of y of its own: no sum is shared. M, N, K >= 1.
/// Throws OutOfMemoryError if oneDNN has no memory for its panels, SystemError if it refuses otherwise.
void matmul_f32(int64_t M, int64_t N, int64_t K, float alpha, MatrixAt<float> a, MatrixAt<float> b,
                float beta, float* y, int64_t y_leading);

}  // namespace tapehead
