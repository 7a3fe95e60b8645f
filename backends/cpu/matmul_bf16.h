// Products of bf16 through oneDNN, on processors that multiply bf16 faster than f32.
#pragma once

#include "tapehead/core/tensor.h"

namespace tapehead {

/// y = alpha · a·b + beta · y, (M, K)·(K, N) -> (M, N), where a and b are bf16, y is f32 or bf16, sums run in
/// f32, and each matrix is dense along one of its dimensions, y along its rows. For anything else, and on
/// processors where f32 is faster, returns false and does nothing. Throws OutOfMemoryError if oneDNN has no
/// memory for its panels, SystemError if it refuses otherwise.
bool matmul_bf16(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& y);

}  // namespace tapehead
