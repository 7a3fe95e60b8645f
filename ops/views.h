// Tensors as kernels take them. Nothing here is recorded: results are detached.
#pragma once

#include "tapehead/core/view.h"

namespace tapehead {

/// x (..., C) as (R, C), dense: the same elements, or a copy of strided ones. Where C is 0, R is 0, too,
/// whatever the other sizes are: rows of nothing, of which kernels make nothing.
inline Tensor as_rows(const Tensor& x) {
  const int64_t columns = x.size(-1);
  const Shape shape{columns == 0 ? 0 : x.numel() / columns, columns};
  const Tensor dense = x.contiguous();
  return dense.alias(shape, shape.contiguous_strides(), dense.offset());
}

/// x (R), of any stride, as (R, 1).
inline Tensor as_column(const Tensor& x) { return x.alias({x.size(0), 1}, {x.strides()[0], 1}, x.offset()); }

/// x (..., R, C) as (..., C, R).
inline Tensor transposed(const Tensor& x) { return transpose(x.detach(), -2, -1); }

}  // namespace tapehead
