#include "tapehead/ops/concat.h"

#include <gtest/gtest.h>

#include "tapehead/core/view.h"
#include "tapehead/tests/golden_cases.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

Tensor leaf(const Shape& shape, uint64_t seed) { return random_tensor(shape, seed).set_requires_grad(); }

TEST(Concat, PyTorch) {
  for (const GoldenCase& c : golden_cases("ops.safetensors", "concat")) {
    expect_golden(c, concat(c.inputs, c.integer("axis")), 0, 0);
  }
}

TEST(Concat, GradientsEqualDifferences) {
  const auto join = [](int64_t axis) {
    return [axis](const std::vector<Tensor>& x) { return concat(x, axis); };
  };
  expect_gradcheck(join(0), {leaf({2, 3}, 1), leaf({1, 3}, 2), leaf({0, 3}, 3)});
  expect_gradcheck(join(-1), {leaf({2, 3}, 1), random_tensor({2, 1}, 2), leaf({2, 2}, 3)});
  expect_gradcheck(join(1),
                   {leaf({2, 1, 2}, 1), transpose(random_tensor({2, 3, 2}, 2), 0, 2).set_requires_grad()});
  expect_gradcheck(join(0), {expand(leaf({1, 3}, 1), {2, 3}).clone().set_requires_grad(),
                             slice(random_tensor({4, 6}, 2), 1, 0, 6, 2).set_requires_grad()});
  expect_gradcheck(join(0), {leaf({3}, 1)});
  expect_gradcheck(join(1), {leaf({0, 2}, 1), leaf({0, 3}, 1)});
  expect_gradcheck(
      [](const std::vector<Tensor>& x) {
        return concat({x[0], x[0], x[1]}, 0);
      },
      {leaf({2}, 1), leaf({1}, 2)});
}

TEST(Concat, Stack) {
  const auto join = [](int64_t axis) {
    return [axis](const std::vector<Tensor>& x) { return stack(x, axis); };
  };
  for (const int64_t axis : {0, 1, 2, -1, -3})
    expect_gradcheck(join(axis), {leaf({2, 3}, 1), leaf({2, 3}, 2)});
  expect_gradcheck(join(0), {leaf({}, 1), leaf({}, 2)});
  EXPECT_EQ(stack({Tensor({2, 3}), Tensor({2, 3})}, -1).shape(), Shape({2, 3, 2}));
  EXPECT_EQ(stack({Tensor({2, 3}), Tensor({2, 3})}, 0).shape(), Shape({2, 2, 3}));
}

TEST(Concat, AnyDtype) {
  const Tensor ids = Tensor::from<int64_t>({2}, {1, 2});
  EXPECT_EQ(concat({ids, ids}, 0).to_vector<int64_t>(), std::vector<int64_t>({1, 2, 1, 2}));
}

// Gradients are slices of the upstream gradient, not copies.
TEST(Concat, BackwardCopiesNothing) {
  std::vector<Tensor> parts = {Tensor::full({2, 3}, 1).set_requires_grad(),
                               Tensor::full({2, 4}, 1).set_requires_grad()};
  const Tensor y = concat(parts, 1), gradient = random_tensor({2, 7}, 1, 1, DType::f32);
  const MemoryScope scope("concat");
  backward(y, gradient);
  // Only the leaves' own gradients are new.
  EXPECT_EQ(memory_stats(test_device(), "concat").peak_bytes, parts[0].bytes() + parts[1].bytes());
}

TEST(Concat, Errors) {
  const Tensor a({2, 3}), b({2, 4});
  expect_error<ValueError>([&] { concat({}, 0); }, "[concat]");
  expect_error<ValueError>([&] { concat({a, b}, 0); }, "(2, 3) and (2, 4)");
  expect_error<ValueError>([&] { concat({a, Tensor({2})}, 0); }, "(2,)");
  expect_error<ValueError>([&] { concat({a, a}, 2); }, "[concat] axis 2 is out of range for shape (2, 3)");
  expect_error<ValueError>([&] { concat({Tensor::scalar(1)}, 0); }, "0");
  expect_error<TypeError>([&] { concat({a, a.to(DType::f64)}, 0); }, "f64");
  expect_error<ValueError>([&] { stack({a, b}, 0); }, "[stack]");
  expect_error<ValueError>([&] { stack({}, 0); }, "[stack]");
  expect_error<ValueError>([&] { stack({a, a}, 3); }, "[stack] axis 3 is out of range");
  expect_error<TypeError>([&] { stack({a, a.to(DType::f64)}, 0); }, "[stack] takes tensors of one dtype");
}

}  // namespace
}  // namespace tapehead
