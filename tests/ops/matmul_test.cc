#include "tapehead/ops/matmul.h"

#include <gtest/gtest.h>

#include "tapehead/tests/golden_cases.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

Tensor leaf(const Shape& shape, uint64_t seed, DType dtype = DType::f64) {
  return random_tensor(shape, seed, 1, dtype).set_requires_grad();
}

Tensor product(const std::vector<Tensor>& x) { return matmul(x[0], x[1]); }

TEST(Matmul, PyTorch) {
  for (const GoldenCase& c : golden_cases("ops.safetensors", "matmul")) {
    expect_golden(c, matmul(c.input("a"), c.input("b")), 1e-13, 1e-14);
  }
}

TEST(Matmul, GradientsEqualDifferences) {
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{2, 3}, {3, 4}},
      {{1, 1}, {1, 1}},
      {{3}, {3}},
      {{2, 3}, {3}},
      {{3}, {3, 2}},
      {{2, 2, 3}, {3, 2}},
      {{2, 3}, {4, 3, 2}},
      {{2, 1, 2, 3}, {4, 3, 2}},
      {{1, 2, 3}, {4, 3, 2}},
      {{4, 2, 3}, {1, 3, 2}},
      {{2, 2, 3}, {3}},
      {{3}, {2, 3, 2}},
      {{0, 3}, {3, 2}},
      {{2, 0}, {0, 3}},
      {{2, 3}, {3, 0}},
      {{0, 2, 3}, {3, 2}},
      {{2, 3}, {0, 3, 2}},
      {{0}, {0}},
      {{2, 1, 1}, {1, 1}},
  };
  for (const auto& [a, b] : shapes) {
    SCOPED_TRACE(fmt::format("{} by {}", a, b));
    expect_gradcheck(product, {leaf(a, 1), leaf(b, 2)});
    expect_gradcheck(product, {random_tensor(a, 1), leaf(b, 2)});
    expect_gradcheck(product, {leaf(a, 1), random_tensor(b, 2)});
  }
}

TEST(Matmul, StridedGradientsEqualDifferences) {
  const auto strided = [](Tensor x) { return x.set_requires_grad(); };
  expect_gradcheck(product, {strided(transpose(random_tensor({3, 2}, 1), 0, 1)),
                             strided(transpose(random_tensor({4, 3}, 2), 0, 1))});
  expect_gradcheck(product, {strided(slice(random_tensor({2, 6}, 1), 1, 0, 6, 2)),
                             strided(slice(random_tensor({6, 4}, 2), 0, 1, 6, 2))});
  expect_gradcheck(product, {strided(transpose(random_tensor({2, 3, 2}, 1), 0, 1)), leaf({3, 2, 4}, 2)});
  expect_gradcheck(
      [](const std::vector<Tensor>& x) { return matmul(transpose(x[0], 1, 2), transpose(x[1], 0, 1)); },
      {leaf({2, 3, 2}, 1), leaf({4, 3}, 2)});
  expect_gradcheck([](const std::vector<Tensor>& x) { return matmul(x[0], transpose(x[0], 0, 1)); },
                   {leaf({2, 3}, 1)});
}

// A batch times a matrix is one product: nothing of batch size beside operands, results and their gradients.
TEST(Matmul, BatchTimesMatrixMakesNoBatchOfGradients) {
  const MemoryScope scope("folded");
  Tensor a = Tensor::full({64, 2, 8}, 1).set_requires_grad(),
         b = Tensor::full({8, 16}, 1).set_requires_grad();
  const Tensor gradient = Tensor::full({64, 2, 16}, 1);
  const Tensor y = matmul(a, b);
  reset_peak(test_device(), "folded");
  const int64_t before = memory_stats(test_device(), "folded").live_bytes;
  backward(y, gradient);
  EXPECT_EQ(memory_stats(test_device(), "folded").peak_bytes - before, a.bytes() + b.bytes());
}

TEST(Matmul, Errors) {
  const Tensor a({2, 3}), scalar = Tensor::scalar(1);
  expect_error<ValueError>([&] { matmul(a, a); }, "(2, 3) and (2, 3)");
  expect_error<ValueError>([&] { matmul(a, Tensor({2})); }, "only size");
  expect_error<ValueError>([&] { matmul(scalar, a); }, "() and (2, 3)");
  expect_error<ValueError>([&] { matmul(a, scalar); }, "[matmul]");
  expect_error<ValueError>([&] { matmul(Tensor({2, 2, 3}), Tensor({3, 3, 2})); }, "[matmul]");
  expect_error<TypeError>([&] { matmul(a, Tensor({3, 2}, DType::f64)); }, "f32 and f64");
  expect_error<TypeError>([&] { matmul(Tensor({2, 3}, DType::i64), Tensor({3, 2}, DType::i64)); }, "i64");
}

TEST(Linear, PyTorch) {
  for (const GoldenCase& c : golden_cases("ops.safetensors", "linear")) {
    expect_golden(c, linear(c.input("input"), c.input("weight"), c.input("bias")), 1e-13, 1e-14);
  }
}

TEST(Linear, GradientsEqualDifferences) {
  const auto with_bias = [](const std::vector<Tensor>& x) { return linear(x[0], x[1], x[2]); };
  const auto without = [](const std::vector<Tensor>& x) { return linear(x[0], x[1]); };
  for (const Shape& shape :
       {Shape{3, 4}, Shape{2, 3, 4}, Shape{4}, Shape{1, 4}, Shape{0, 4}, Shape{2, 0, 4}}) {
    SCOPED_TRACE(shape.str());
    expect_gradcheck(with_bias, {leaf(shape, 1), leaf({5, 4}, 2), leaf({5}, 3)});
    expect_gradcheck(without, {leaf(shape, 1), leaf({5, 4}, 2)});
    expect_gradcheck(with_bias, {random_tensor(shape, 1), random_tensor({5, 4}, 2), leaf({5}, 3)});
  }
  expect_gradcheck(with_bias, {leaf({2, 0}, 1), leaf({3, 0}, 2), leaf({3}, 3)});
  expect_gradcheck(with_bias, {leaf({2, 3}, 1), leaf({0, 3}, 2), leaf({0}, 3)});
  expect_gradcheck(with_bias, {leaf({1, 1}, 1), leaf({1, 1}, 2), leaf({1}, 3)});
  const auto strided = [](Tensor x) { return x.set_requires_grad(); };
  expect_gradcheck(with_bias, {strided(transpose(random_tensor({4, 3, 2}, 1), 0, 2)),
                               strided(transpose(random_tensor({4, 5}, 2), 0, 1)),
                               strided(slice(random_tensor({10}, 3), 0, 0, 10, 2))});
}

// GPT-2's files hold weights as (in, out): used as they are, forward and backward, gradient included.
TEST(Linear, TransposedWeightIsNeverCopied) {
  constexpr int64_t kRows = 2, kIn = 64, kOut = 128;
  const MemoryScope scope("transposed");
  Tensor x = Tensor::full({kRows, kIn}, 1), stored = leaf({kIn, kOut}, 2, DType::f32);
  const Tensor gradient = Tensor::full({kRows, kOut}, 1);
  const auto peak = [&](const std::function<void()>& call) {
    reset_peak(test_device(), "transposed");
    const int64_t before = memory_stats(test_device(), "transposed").live_bytes;
    call();
    return memory_stats(test_device(), "transposed").peak_bytes - before;
  };
  Tensor y;
  const int64_t forward_peak = peak([&] { y = linear(x, transpose(stored, 0, 1)); });
  EXPECT_EQ(forward_peak, y.bytes());
  EXPECT_EQ(peak([&] { backward(y, gradient); }), stored.bytes());
  EXPECT_TRUE(stored.grad().is_contiguous());
  EXPECT_EQ(stored.grad().shape(), stored.shape());
}

TEST(Linear, RoundsLikeItsDtype) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Tensor x = leaf({3, 50}, 1, dtype), weight = leaf({20, 50}, 2, dtype), bias = leaf({20}, 3, dtype);
    Tensor wide_x = x.to(DType::f64).set_requires_grad(),
           wide_weight = weight.to(DType::f64).set_requires_grad();
    const Tensor y = linear(x, weight, bias), expected = linear(wide_x, wide_weight, bias.to(DType::f64));
    const Tensor gradient = random_tensor(y.shape(), 4, 1, dtype);
    backward(y, gradient);
    backward(expected, gradient.to(DType::f64));
    const double tolerance = 8 * epsilon(dtype);
    expect_close(y.to(DType::f64), expected, tolerance, tolerance, std::string(name(dtype)));
    expect_close(x.grad().to(DType::f64), wide_x.grad(), tolerance, tolerance, std::string(name(dtype)));
    expect_close(weight.grad().to(DType::f64), wide_weight.grad(), tolerance, tolerance,
                 std::string(name(dtype)));
  }
}

TEST(Linear, Errors) {
  const Tensor x({2, 3}), weight({4, 3});
  expect_error<ValueError>([&] { linear(x, Tensor({3, 4})); }, "(2, 3) and weight of shape (3, 4)");
  expect_error<ValueError>([&] { linear(Tensor::scalar(1), weight); }, "shape ()");
  expect_error<ValueError>([&] { linear(x, Tensor({3})); }, "(3,)");
  expect_error<ValueError>([&] { linear(x, weight, Tensor({3})); }, "must be (4,)");
  expect_error<ValueError>([&] { linear(x, weight, Tensor({1, 4})); }, "(1, 4)");
  expect_error<TypeError>([&] { linear(x, weight, Tensor({4}, DType::f64)); }, "f64");
  expect_error<TypeError>([&] { linear(x, Tensor({4, 3}, DType::f64)); }, "f64");
}

}  // namespace
}  // namespace tapehead
