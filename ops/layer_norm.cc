#include "tapehead/ops/layer_norm.h"

#include "tapehead/backends/backend.h"
#include "tapehead/ops/operands.h"
#include "tapehead/ops/views.h"

namespace tapehead {

static Tensor dense_or_none(const Tensor& x) { return x.defined() ? x.contiguous() : x; }

static void check_vector(const char* op, const char* what, const Tensor& v, const Tensor& x) {
  if (!v.defined()) return;
  check<ValueError>(v.shape() == Shape{x.size(-1)},
                    "[{}] {} of shape {} with x of shape {}: it must be ({},)", op, what, v.shape(),
                    x.shape(), x.size(-1));
}

static void check_arguments(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                            double epsilon) {
  check_operands(op, {{"x", x}, {"weight", weight}, {"bias", bias}});
  check<ValueError>(x.dim() >= 1, "[{}] x is a scalar: there is no axis to normalise", op);
  check<ValueError>(epsilon >= 0, "[{}] epsilon is {}; it must be at least 0", op, epsilon);
  check_vector(op, "weight", weight, x);
  check_vector(op, "bias", bias, x);
}

// A number for each row, of the arithmetic's dtype.
static Tensor row_numbers(const Tensor& rows) {
  return Tensor({rows.size(0)}, arithmetic_dtype(rows.dtype()), rows.device());
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon) {
  check_arguments("layer_norm", x, weight, bias, epsilon);
  Tensor y = Tensor::empty_like(x);
  Tensor mean, rstd;  // only backward reads them
  const Tensor x_rows = as_rows(x);
  if (will_record({x, weight, bias})) {
    mean = row_numbers(x_rows);
    rstd = row_numbers(x_rows);
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

Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon) {
  check_arguments("rms_norm", x, weight, {}, epsilon);
  Tensor y = Tensor::empty_like(x), y_rows = as_rows(y);
  const Tensor x_rows = as_rows(x);
  Tensor rrms;  // only backward reads it
  if (will_record({x, weight})) rrms = row_numbers(x_rows);
  backend(x).rms_norm(x_rows, dense_or_none(weight), epsilon, y_rows, rrms);

  return record("rms_norm", y, {x, weight}, {x, weight, rrms}, [](const Upstream& up) -> Gradients {
    const Tensor in = up.saved(0);
    Tensor gx, gx_rows, gweight;
    if (up.needs(0)) {
      gx = Tensor::empty_like(in);
      gx_rows = as_rows(gx);
    }
    if (up.needs(1)) gweight = Tensor(Shape{in.size(-1)}, in.dtype(), in.device());
    backend(in).rms_norm_backward(as_rows(in), dense_or_none(up.saved(1)), up.saved(2), as_rows(up.grad),
                                  gx_rows, gweight);
    return {gx, gweight};
  });
}

}  // namespace tapehead
