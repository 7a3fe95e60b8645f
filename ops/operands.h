// What every op asks of its tensors.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>

#include "tapehead/core/tensor.h"

namespace tapehead {

/// A tensor argument by the name that it has in the call; of a list, the entry at `place`.
/// Undefined: left out.
struct Operand {
  const char* name;
  const Tensor& tensor;
  std::optional<size_t> place = {};

  /// "weight", "entry 2 of tensors".
  std::string describe() const;
};

/// Throws ValueError that names two operands and their devices unless all that are defined are on one.
/// Every op with more than one tensor asks this first: kernels take addresses for their own device's.
/// Errors begin with [op].
void check_devices(const char* op, std::initializer_list<Operand> operands);

/// The same, and throws TypeError unless all are of one floating dtype.
void check_operands(const char* op, std::initializer_list<Operand> operands);

}  // namespace tapehead
