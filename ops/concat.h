// Tensors joined along a dimension.
#pragma once

#include <vector>

#include "tapehead/core/tape.h"

namespace tapehead {

/// The tensors one after another along `axis`, which may be negative; a copy, of any dtype.
/// Throws ValueError if there is none, sizes differ along another axis, the axis is out of range, or devices
/// differ; TypeError if dtypes differ.
Tensor concat(const std::vector<Tensor>& tensors, int64_t axis);

/// The same along a new dimension before `axis` (negative: counted in the result). All shapes must be equal,
/// or it is a ValueError.
Tensor stack(const std::vector<Tensor>& tensors, int64_t axis);

}  // namespace tapehead
