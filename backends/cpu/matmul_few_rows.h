// Products of few rows with a large matrix, which is read once and where it lies.
#pragma once

#include "tapehead/core/tensor.h"

namespace tapehead {

/// y = alpha · a·b + beta · y, (M, K)·(K, N) -> (M, N), for the products of which a library, or widening,
/// spends much on b: M is at most 32, or 128 if b has 16 bits; b is large and dense along one dimension, `a`
/// and y are dense along their rows, y is f32, and a and b are f32, f16 or bf16; K is at least 16, and each
/// thread has 64 columns of its own. One row goes to matmul_one_row.h. For anything else returns false and
/// does nothing. No element's sum depends on the number of threads.
bool matmul_few_rows(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& y);

}  // namespace tapehead
