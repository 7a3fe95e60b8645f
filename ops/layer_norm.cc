#include "tapehead/ops/layer_norm.h"

#include "tapehead/backends/backend.h"
#include "tapehead/ops/operands.h"
#include "tapehead/ops/rows.h"

namespace tapehead {

static Tensor dense_or_none(const Tensor& x) { return x.defined() ? x.contiguous() : x; }

static void check_vector(const char* what, const Tensor& v, const Tensor& x) {
  if (!v.defined()) return;
  check<ValueError>(v.shape() == Shape{x.size(-1)},
                    "[layer_norm] {} of shape {} with x of shape {}: it must be ({},)", what, v.shape(),
                    x.shape(), x.size(-1));
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon) {
  check_operands("layer_norm", {x, weight, bias});
  check<ValueError>(x.dim() >= 1, "[layer_norm] x is a scalar: there is no axis to normalise");
  check<ValueError>(epsilon >= 0, "[layer_norm] epsilon is {}; it must be at least 0", epsilon);
  check_vector("weight", weight, x);
  check_vector("bias", bias, x);

  Tensor y = Tensor::empty_like(x);
  Tensor mean, rstd;  // only backward reads them
  const Tensor x_rows = as_rows(x);
  if (will_record({x, weight, bias})) {
    const DType wide = arithmetic_dtype(x.dtype());
    mean = Tensor({x_rows.size(0)}, wide, x.device());
    rstd = Tensor({x_rows.size(0)}, wide, x.device());
  }
  Tensor y_rows = as_rows(y);
  backend(x).layer_norm(x_rows, dense_or_none(weight), dense_or_none(bias), epsilon, y_rows, mean, rstd);

  return record("layer_norm", y, {x, weight, bias}, {x, weight, mean, rstd},
                [](const Upstream& up) -> Gradients {
                  const Tensor in = up.saved(0);
                  const Shape vector{in.size(-1)};
                  Tensor gx, gx_rows, gweight, gbias;
                  if (up.needs(0)) {
                    gx = Tensor::empty_like(in);
                    gx_rows = as_rows(gx);
                  }
                  if (up.needs(1)) gweight = Tensor(vector, in.dtype(), in.device());
                  if (up.needs(2)) gbias = Tensor(vector, in.dtype(), in.device());
                  backend(in).layer_norm_backward(as_rows(in), dense_or_none(up.saved(1)), up.saved(2),
                                                  up.saved(3), as_rows(up.grad), gx_rows, gweight, gbias);
                  return {gx, gweight, gbias};
                });
}

}  // namespace tapehead
