#include "tapehead/ops/softmax.h"

#include "tapehead/backends/backend.h"
#include "tapehead/ops/operands.h"
#include "tapehead/ops/views.h"

namespace tapehead {

// Along the last axis.
static Tensor apply(const char* name, const Tensor& x, bool log) {
  Tensor y = Tensor::empty_like(x);
  Tensor rows = as_rows(y);
  backend(x).softmax(as_rows(x), log, rows);
  return record(name, y, {x}, {y}, [log](const Upstream& up) -> Gradients {
    Tensor gx = Tensor::empty_like(up.grad);
    Tensor gradient_rows = as_rows(gx);
    backend(gx).softmax_backward(as_rows(up.saved(0)), as_rows(up.grad), log, gradient_rows);
    return {gx};
  });
}

static Tensor apply(const char* name, const Tensor& x, int64_t axis, bool log) {
  check_operands(name, {{"x", x}});
  if (x.shape().normalize_axis(axis, name) == x.dim() - 1) return apply(name, x, log);
  return transpose(apply(name, transpose(x, axis, -1), log), axis, -1);
}

Tensor softmax(const Tensor& x, int64_t axis) { return apply("softmax", x, axis, false); }
Tensor log_softmax(const Tensor& x, int64_t axis) { return apply("log_softmax", x, axis, true); }

}  // namespace tapehead
