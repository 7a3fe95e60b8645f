// What every op asks of its tensors.
#pragma once

#include <initializer_list>

#include "tapehead/core/tensor.h"

namespace tapehead {

/// Throws TypeError unless all are of one floating dtype, and ValueError unless all are on one device; undefined ones do
/// not count. Errors begin with [op].
inline void check_operands(const char* op, std::initializer_list<Tensor> tensors) {
  const Tensor& first = *tensors.begin();
  if (tensors.size() == 1) {
    check<TypeError>(is_floating(first.dtype()), "[{}] takes a floating tensor, not {}", op, first.dtype());
  }
  for (const Tensor& x : tensors) {
    if (!x.defined()) continue;
    check<TypeError>(x.dtype() == first.dtype() && is_floating(x.dtype()),
                     "[{}] takes tensors of one floating dtype, not {} and {}", op, first.dtype(), x.dtype());
    check<ValueError>(x.device() == first.device(), "[{}] takes tensors on one device, not {} and {}", op,
                      first.device(), x.device());
  }
}

}  // namespace tapehead
