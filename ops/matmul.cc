#include "tapehead/ops/matmul.h"

#include "tapehead/backends/backend.h"
#include "tapehead/backends/matrix_layout.h"
#include "tapehead/ops/operands.h"
#include "tapehead/ops/views.h"

namespace tapehead {

// a·b; not recorded.
static Tensor product(const Tensor& a, const Tensor& b) {
  const Shape batch = broadcast(batch_shape(a), batch_shape(b), "matmul");
  Tensor y(batch.insert(batch.dim(), a.size(-2)).insert(batch.dim() + 1, b.size(-1)), a.dtype(), a.device());
  backend(y).matmul(1, a, b, 0, y);
  return y;
}

// The gradient a·b of a matrix x. Where x is stored by columns, so is its gradient: x is then likely a
// transposed view, whose backward makes rows of it again, and the leaf need not copy.
static Tensor product_like(const Tensor& x, const Tensor& a, const Tensor& b) {
  const bool by_columns = x.strides()[static_cast<size_t>(x.dim() - 2)] == 1 && x.size(-1) > 1;
  return by_columns ? transposed(product(transposed(b), transposed(a))) : product(a, b);
}

// x (..., F) as the rows of a matrix.
static Tensor flatten_rows(const Tensor& x) {
  const int64_t rows = Shape(std::vector<int64_t>(x.shape().begin(), x.shape().end() - 1)).numel();
  return reshape(x, {rows, x.size(-1)});
}

Tensor matmul(const Tensor& a, const Tensor& b) {
  check_operands("matmul", {{"a", a}, {"b", b}});
  check<ValueError>(a.dim() >= 1 && b.dim() >= 1,
                    "[matmul] takes vectors, matrices and batches of them, not shapes {} and {}", a.shape(),
                    b.shape());
  check<ValueError>(a.size(-1) == b.size(b.dim() == 1 ? 0 : -2),
                    "[matmul] shapes {} and {}: the last size of the first, {}, must be the {} of the second",
                    a.shape(), b.shape(), a.size(-1), b.dim() == 1 ? "only size" : "last but one");
  if (a.dim() == 1) return squeeze(matmul(unsqueeze(a, 0), b), b.dim() == 1 ? 0 : -2);
  if (b.dim() == 1) return squeeze(matmul(a, unsqueeze(b, 1)), -1);
  if (a.dim() > 2 && b.dim() == 2) {  // one product, not a batch of them, in both directions
    return reshape(matmul(flatten_rows(a), b), a.shape().with(-1, b.size(1)).sizes());
  }
  return record("matmul", product(a, b), {a, b}, {a, b}, [](const Upstream& up) -> Gradients {
    // Gradients keep the broadcast batch: accumulate_gradient sums over it.
    const Tensor x = up.saved(0), y = up.saved(1);
    return {up.needs(0) ? product_like(x, up.grad, transposed(y)) : Tensor(),
            up.needs(1) ? product_like(y, transposed(x), up.grad) : Tensor()};
  });
}

// The column sums of g (R, C): the gradient of what was added to every row.
static Tensor column_sums(const Tensor& g) {
  Tensor total({1, g.size(1)}, g.dtype(), g.device());
  backend(g).sum(g, 1, total);
  return reshape(total, {g.size(1)});
}

// x (R, F), weight (C, F), bias (C) -> (R, C).
static Tensor linear_rows(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  Tensor y({x.size(0), weight.size(0)}, x.dtype(), x.device());
  if (bias.defined()) y.copy_from(bias);
  backend(y).matmul(1, x, transposed(weight), bias.defined() ? 1 : 0, y);
  return record("linear", y, {x, weight, bias}, {x, weight}, [](const Upstream& up) -> Gradients {
    const Tensor rows = up.saved(0), w = up.saved(1);
    return {up.needs(0) ? product(up.grad, w) : Tensor(),
            up.needs(1) ? product_like(w, transposed(up.grad), rows) : Tensor(),
            up.needs(2) ? column_sums(up.grad) : Tensor()};
  });
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_operands("linear", {{"x", x}, {"weight", weight}, {"bias", bias}});
  check<ValueError>(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1),
                    "[linear] x of shape {} and weight of shape {}: they must be (..., F) and (C, F)",
                    x.shape(), weight.shape());
  if (bias.defined() && bias.shape() != Shape{weight.size(0)}) {
    fail<ValueError>("[linear] bias of shape {} for weight of shape {}: it must be {}", bias.shape(),
                     weight.shape(), Shape{weight.size(0)});
  }
  if (x.dim() == 2) return linear_rows(x, weight, bias);
  return reshape(linear_rows(flatten_rows(x), weight, bias), x.shape().with(-1, weight.size(0)).sizes());
}

}  // namespace tapehead
