// Products of few rows with a large matrix, which is read once and where it lies.
#pragma once

#include "tapehead/core/tensor.h"

namespace tapehead {

/// y = alpha · a·b + beta · y in f32, (M, K)·(K, N) -> (M, N), for the products of which OpenBLAS spends much on packing b: M
/// is at most 128, b is large and dense along one dimension, y along its rows, and if b is dense along its rows, a is too.
/// For anything else returns false and does nothing. No element's sum depends on the number of threads.
bool matmul_few_rows(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& y);

}  // namespace tapehead
