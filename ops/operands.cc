#include "tapehead/ops/operands.h"

namespace tapehead {

std::string Operand::describe() const { return place ? fmt::format("entry {} of {}", *place, name) : name; }

void check_devices(const char* op, std::initializer_list<Operand> operands) {
  const Operand* first = nullptr;
  for (const Operand& x : operands) {
    if (!x.tensor.defined()) continue;
    if (!first) first = &x;
    if (x.tensor.device() == first->tensor.device()) continue;
    fail<ValueError>("[{}] {} is on {}, but {} on {}: bring them to one device with Tensor::to", op,
                     first->describe(), first->tensor.device(), x.describe(), x.tensor.device());
  }
}

void check_operands(const char* op, std::initializer_list<Operand> operands) {
  const Tensor& first = operands.begin()->tensor;
  if (operands.size() == 1) {
    check<TypeError>(is_floating(first.dtype()), "[{}] takes a floating tensor, not {}", op, first.dtype());
  }
  for (const Operand& x : operands) {
    if (!x.tensor.defined()) continue;
    const DType dtype = x.tensor.dtype();
    check<TypeError>(dtype == first.dtype() && is_floating(dtype),
                     "[{}] takes tensors of one floating dtype, not {} and {}", op, first.dtype(), dtype);
  }
  check_devices(op, operands);
}

}  // namespace tapehead
