// Tensors as the dense rows that row kernels take.
#pragma once

#include "tapehead/core/tensor.h"

namespace tapehead {

/// x (..., C) as (R, C), dense: the same elements, or a copy of strided ones. Detached. Where C is 0, R is 0,
/// too, whatever the other sizes are: rows of nothing, of which kernels make nothing.
inline Tensor as_rows(const Tensor& x) {
  const int64_t columns = x.size(-1);
  const Shape shape{columns == 0 ? 0 : x.numel() / columns, columns};
  const Tensor dense = x.contiguous();
  return dense.alias(shape, shape.contiguous_strides(), dense.offset());
}

}  // namespace tapehead
