#include "tapehead/ops/reduce.h"

#include "tapehead/backends/backend.h"
#include "tapehead/ops/operands.h"

namespace tapehead {

namespace {

// What a reduction does to a shape.
struct Reduced {
  Shape kept;     // size 1 along the reduced axes: what kernels write
  Shape result;   // what the caller gets
  int64_t count;  // elements of x behind one of the result

  Reduced(const char* op, const Tensor& x, const std::vector<int64_t>& axes, bool keepdim) {
    check_operands(op, {{"x", x}});
    std::vector<bool> gone(static_cast<size_t>(x.dim()), axes.empty());
    for (const int64_t axis : axes) {
      const size_t i = static_cast<size_t>(x.shape().normalize_axis(axis, op));
      check<ValueError>(!gone[i], "[{}] axis {} of shape {} is given twice", op, axis, x.shape());
      gone[i] = true;
    }
    std::vector<int64_t> ones, left;
    count = 1;
    for (size_t i = 0; i < gone.size(); ++i) {
      const int64_t size = x.shape().sizes()[i];
      if (gone[i]) count *= size;
      ones.push_back(gone[i] ? 1 : size);
      if (!gone[i] || keepdim) left.push_back(ones.back());
    }
    kept = Shape(ones);
    result = Shape(left);
  }
};

}  // namespace

// Both have a result's elements and differ in dimensions of size 1 only.
static Tensor viewed(const Tensor& x, const Shape& shape) { return reshape(x, shape.sizes()); }

static Tensor scaled_sum(const char* op, const Tensor& x, const Reduced& r, double scale) {
  Tensor y(r.kept, x.dtype(), x.device());
  backend(x).sum(x, scale, y);
  return record(op, viewed(y, r.result), {x}, {},
                [kept = r.kept, shape = x.shape(), scale](const Upstream& up) -> Gradients {
                  Tensor g = viewed(up.grad, kept);
                  if (scale != 1) {
                    Tensor scaled(kept, g.dtype(), g.device());
                    backend(g).sum(g, scale, scaled);  // over nothing: a product in f64, rounded once
                    g = scaled;
                  }
                  return {expand(g, shape)};
                });
}

Tensor sum(const Tensor& x, const std::vector<int64_t>& axes, bool keepdim) {
  return scaled_sum("sum", x, Reduced("sum", x, axes, keepdim), 1);
}

Tensor mean(const Tensor& x, const std::vector<int64_t>& axes, bool keepdim) {
  const Reduced r("mean", x, axes, keepdim);
  return scaled_sum("mean", x, r, 1 / static_cast<double>(r.count));
}

Tensor max(const Tensor& x, const std::vector<int64_t>& axes, bool keepdim) {
  const Reduced r("max", x, axes, keepdim);
  check<ValueError>(r.count > 0 || r.kept.numel() == 0,
                    "[max] of no elements: shape {} is empty along the reduced axes", x.shape());
  Tensor y(r.kept, x.dtype(), x.device());
  backend(x).max(x, y);
  return record("max", viewed(y, r.result), {x}, {x, y}, [kept = r.kept](const Upstream& up) -> Gradients {
    const Tensor in = up.saved(0);
    Tensor gx = Tensor::empty_like(in);
    backend(in).max_backward(in, up.saved(1), viewed(up.grad, kept), gx);
    return {gx};
  });
}

}  // namespace tapehead
