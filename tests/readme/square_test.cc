// The README's new op, and its test.
#include <gtest/gtest.h>

#include "tapehead/backends/backend.h"
#include "tapehead/ops/elementwise.h"
#include "tapehead/ops/operands.h"
#include "tapehead/tests/testing.h"

namespace tapehead {

Tensor square(const Tensor& x) {
  check_operands("square", {{"x", x}});  // a floating tensor
  Tensor y = Tensor::empty_like(x);
  backend(y).binary(Binary::mul, x, x, y);
  return record("square", y, {x}, {x}, [](const Upstream& up) -> Gradients {
    return {up.grad * up.saved(0) * 2};  // saved: throws if x was changed in place since
  });
}

TEST(Square, HasTheRightGradient) {
  const Tensor x = Tensor::from<double>({2, 3}, {-2, -1, 0.5, 1, 2, 3}).set_requires_grad();
  expect_gradcheck([](const std::vector<Tensor>& in) { return square(in[0]); }, {x});
}

}  // namespace tapehead
