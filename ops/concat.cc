#include "tapehead/ops/concat.h"

#include "tapehead/core/view.h"
#include "tapehead/ops/operands.h"

namespace tapehead {

static void check_alike(const char* op, const std::vector<Tensor>& tensors) {
  check<ValueError>(!tensors.empty(), "[{}] needs at least one tensor", op);
  const Tensor& head = tensors[0];
  for (size_t i = 1; i < tensors.size(); ++i) {
    check_devices(op, {{"tensors", head, 0}, {"tensors", tensors[i], i}});
    check<TypeError>(tensors[i].dtype() == head.dtype(), "[{}] takes tensors of one dtype, not {} and {}", op,
                     head.dtype(), tensors[i].dtype());
  }
}

Tensor concat(const std::vector<Tensor>& tensors, int64_t axis) {
  check_alike("concat", tensors);
  const Tensor& head = tensors[0];
  axis = head.shape().normalize_axis(axis, "concat");
  std::vector<int64_t> ends;  // of each tensor, along `axis` of the result
  for (const Tensor& x : tensors) {
    check<ValueError>(x.dim() == head.dim() && x.shape().without(axis) == head.shape().without(axis),
                      "[concat] shapes {} and {} differ elsewhere than along axis {}", head.shape(),
                      x.shape(), axis);
    ends.push_back((ends.empty() ? 0 : ends.back()) + x.size(axis));
  }
  Tensor y(head.shape().with(axis, ends.back()), head.dtype(), head.device());
  for (size_t i = 0; i < tensors.size(); ++i) {
    slice(y, axis, ends[i] - tensors[i].size(axis), ends[i]).copy_from(tensors[i]);
  }
  return record("concat", y, tensors, {}, [axis, ends](const Upstream& up) -> Gradients {
    Gradients parts;
    for (size_t i = 0; i < ends.size(); ++i)
      parts.push_back(slice(up.grad, axis, i == 0 ? 0 : ends[i - 1], ends[i]));
    return parts;
  });
}

Tensor stack(const std::vector<Tensor>& tensors, int64_t axis) {
  check_alike("stack", tensors);
  const Shape sliced = tensors[0].shape().insert(axis, 1, "stack");
  std::vector<Tensor> slices;
  for (const Tensor& x : tensors) {
    check<ValueError>(x.shape() == tensors[0].shape(), "[stack] shapes {} and {} differ", tensors[0].shape(),
                      x.shape());
    slices.push_back(reshape(x, sliced.sizes()));
  }
  return concat(slices, axis);
}

}  // namespace tapehead
