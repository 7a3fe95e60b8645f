#include "tapehead/ops/elementwise.h"

#include "tapehead/backends/backend.h"
#include "tapehead/ops/operands.h"

namespace tapehead {

// ---- Two inputs

static Tensor apply(Binary op, const char* name, const Tensor& a, const Tensor& b) {
  check_operands(name, {{"a", a}, {"b", b}});
  Tensor y(broadcast(a.shape(), b.shape(), name), a.dtype(), a.device());
  backend(y).binary(op, a, b, y);
  return y;
}

// Gradients keep the broadcast shape: accumulate_gradient sums over what an input was broadcast along.

Tensor add(const Tensor& a, const Tensor& b) {
  return record("add", apply(Binary::add, "add", a, b), {a, b}, {}, [](const Upstream& up) -> Gradients {
    return {up.grad, up.grad};
  });
}

Tensor sub(const Tensor& a, const Tensor& b) {
  return record("sub", apply(Binary::sub, "sub", a, b), {a, b}, {}, [](const Upstream& up) -> Gradients {
    return {up.grad, up.needs(1) ? neg(up.grad) : Tensor()};
  });
}

Tensor mul(const Tensor& a, const Tensor& b) {
  return record("mul", apply(Binary::mul, "mul", a, b), {a, b}, {a, b}, [](const Upstream& up) -> Gradients {
    return {up.needs(0) ? up.grad * up.saved(1) : Tensor(), up.needs(1) ? up.grad * up.saved(0) : Tensor()};
  });
}

Tensor div(const Tensor& a, const Tensor& b) {
  return record("div", apply(Binary::div, "div", a, b), {a, b}, {a, b}, [](const Upstream& up) -> Gradients {
    const Tensor num = up.saved(0), den = up.saved(1), along = up.grad / den;
    // Not by den², which may be out of range where the gradient is not.
    return {along, up.needs(1) ? neg(along * (num / den)) : Tensor()};
  });
}

// ---- One input

static Tensor apply(Unary op, const char* name, const Tensor& x) {
  check_operands(name, {{"x", x}});
  Tensor y = Tensor::empty_like(x);
  backend(y).unary(op, x, y);
  return record(name, y, {x}, {derivative_uses_result(op) ? y : x}, [op](const Upstream& up) -> Gradients {
    Tensor gx = Tensor::empty_like(up.grad);
    backend(gx).unary_backward(op, up.saved(0), up.grad, gx);
    return {gx};
  });
}

Tensor neg(const Tensor& x) { return apply(Unary::neg, "neg", x); }
Tensor exp(const Tensor& x) { return apply(Unary::exp, "exp", x); }
Tensor log(const Tensor& x) { return apply(Unary::log, "log", x); }
Tensor tanh(const Tensor& x) { return apply(Unary::tanh, "tanh", x); }
Tensor sqrt(const Tensor& x) { return apply(Unary::sqrt, "sqrt", x); }
Tensor relu(const Tensor& x) { return apply(Unary::relu, "relu", x); }
Tensor gelu(const Tensor& x) { return apply(Unary::gelu, "gelu", x); }
Tensor gelu_tanh(const Tensor& x) { return apply(Unary::gelu_tanh, "gelu_tanh", x); }
Tensor silu(const Tensor& x) { return apply(Unary::silu, "silu", x); }

}  // namespace tapehead
