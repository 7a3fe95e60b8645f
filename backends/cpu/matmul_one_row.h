// Products of one row with a large matrix: every token that a model generates reads all its weights so.
#pragma once

#include "tapehead/core/tensor.h"

namespace tapehead {

/// y = alpha · a·b + beta · y, (1, K)·(K, N) -> (1, N), and y is not read if beta is 0. `a` and y are dense,
/// b is dense along one dimension and has kGrain elements (core/parallel.h) or more, y is f32, and a and b are
/// f32, f16 or bf16. For anything else returns false and does nothing. No element's sum depends on the number
/// of threads.
bool matmul_one_row(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& y);

}  // namespace tapehead
