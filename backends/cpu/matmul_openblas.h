// Products of f32 and f64 through OpenBLAS.
#pragma once

#include "tapehead/backends/matrix_layout.h"

namespace tapehead {

/// Whether OpenBLAS takes a product of f32 of these sizes, the longest `leading` among them, and does it
/// faster than oneDNN (matmul_f32.h).
bool suits_openblas(int64_t M, int64_t N, int64_t K, int64_t leading, double beta);

/// y = alpha · a·b + beta · y, (M, K)·(K, N) -> (M, N), and y is not read if beta is 0. y's rows are dense,
/// y_leading elements apart. M, N >= 1. Throws ValueError if a size, or a leading, is beyond 2³¹ - 1, which
/// is the most that OpenBLAS takes.
void matmul_openblas(int64_t M, int64_t N, int64_t K, double alpha, MatrixAt<float> a, MatrixAt<float> b,
                     double beta, float* y, int64_t y_leading);
void matmul_openblas(int64_t M, int64_t N, int64_t K, double alpha, MatrixAt<double> a, MatrixAt<double> b,
                     double beta, double* y, int64_t y_leading);

}  // namespace tapehead
