// Heads as attention's kernels read and write them.
#pragma once

#include "tapehead/core/tensor.h"

namespace tapehead {

/// Uninitialised (B, H, T, D), laid out as (B, T, H, D): joining the heads costs nothing.
inline Tensor joined_heads(const Shape& shape, DType dtype, Device device) {
  const int64_t H = shape[1], T = shape[2], D = shape[3];
  return Tensor(shape, dtype, device).alias(shape, {H * T * D, D, H * D, 1}, 0);
}

/// x (B, H, T, D) dense along D: itself, or a copy. Detached.
inline Tensor dense_heads(const Tensor& x) {
  return x.size(3) == 1 || x.strides()[3] == 1 ? x.detach() : x.contiguous();
}

}  // namespace tapehead
