// Matrix products. Floating tensors of one dtype.
#pragma once

#include "tapehead/core/view.h"

namespace tapehead {

/// a·b by the rules of numpy.matmul: (..., M, K)·(..., K, N) -> (..., M, N) with the leading dimensions
/// broadcast; a vector (K) stands for (1, K) on the left and (K, 1) on the right, and that dimension leaves
/// the result. Throws ValueError on shapes that do not fit, scalars among them, and on different devices,
/// TypeError on dtypes that differ or are integers.
Tensor matmul(const Tensor& a, const Tensor& b);

/// x·weightᵀ + bias: x (..., F), weight (C, F), bias (C) or undefined -> (..., C).
/// torch.nn.functional.linear. A weight stored as (F, C) is passed as its transpose, at no cost: neither it
/// nor its gradient is copied. Throws ValueError on shapes that do not fit and on different devices,
/// TypeError on dtypes that differ or are integers.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace tapehead
