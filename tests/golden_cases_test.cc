#include "tapehead/tests/golden_cases.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tapehead/core/view.h"

namespace tapehead {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Tensor row(const std::vector<double>& values) {
  return Tensor::from<double>({static_cast<int64_t>(values.size())}, values);
}

TEST(GoldenCases, EveryCaseOfAnOpIsLoaded) {
  const std::vector<GoldenCase> cases = golden_cases("ops.safetensors", "layer_norm");
  EXPECT_GT(cases.size(), 3u);
  for (const GoldenCase& c : cases) {
    EXPECT_TRUE(c.name.starts_with("layer_norm/")) << c.name;
    ASSERT_EQ(c.inputs.size(), c.roles.size());
    EXPECT_TRUE(c.input("input").is_same(c.inputs[0]));
    EXPECT_TRUE(c.input("input").requires_grad());
    EXPECT_FALSE(c.input("no such role").defined());
    EXPECT_TRUE(c.has("eps"));
    EXPECT_FALSE(c.has("no such parameter"));
    EXPECT_EQ(c.out.shape(), c.grad_out.shape());
  }
}

TEST(GoldenCases, AnUnknownOpIsAnErrorRatherThanATestOfNothing) {
  EXPECT_THROW(golden_cases("ops.safetensors", "layer"), ValueError);
}

TEST(GoldenCases, ReshapeMatches) {
  for (const GoldenCase& c : golden_cases("ops.safetensors", "reshape")) {
    const auto compute = [&] { return reshape(c.input("x"), c.integers("shape")); };
    expect_golden(c, compute(), 0, 0);
    expect_golden(c, compute(), 0, 0);  // gradients of the first call are not counted twice
  }
}

TEST(ExpectClose, EqualNonFiniteElementsAreClose) {
  const Tensor x = row({kNaN, kInf, -kInf, 1});
  expect_close(x, x, 0, 0, "x");
  expect_close(row({1.09}), row({1}), 0.1, 0, "relative");
  expect_close(row({1e-9}), row({0}), 0, 1e-9, "absolute");
  expect_close(Tensor::zeros({0, 3}), Tensor::zeros({0, 3}), 0, 0, "empty");
}

TEST(ExpectClose, TheWorstElementIsShown) {
  EXPECT_NONFATAL_FAILURE(expect_close(row({0, 2, 5, 4}), row({0, 1, 1, 4}), 0.1, 0, "loss"), "loss: 2 of 4");
  EXPECT_NONFATAL_FAILURE(expect_close(row({0, 2, 5, 4}), row({0, 1, 1, 4}), 0.1, 0, "loss"), "at (2)");
  EXPECT_NONFATAL_FAILURE(expect_close(row({kNaN}), row({1}), 0.1, 1, "x"), "nan, expected 1");
  EXPECT_NONFATAL_FAILURE(expect_close(row({1}), row({kNaN}), 0.1, 1, "x"), "1 of 1");
  EXPECT_NONFATAL_FAILURE(expect_close(row({kInf}), row({-kInf}), 0.1, 1, "x"), "1 of 1");
  EXPECT_NONFATAL_FAILURE(expect_close(row({1}), row({kInf}), 0.1, 1, "x"), "1 of 1");
  EXPECT_NONFATAL_FAILURE(expect_close(row({0.5}), row({0}), 0, 0, "x"), "1 of 1");
}

TEST(ExpectClose, ShapeAndDTypeMustAgree) {
  EXPECT_FATAL_FAILURE(expect_close(Tensor::zeros({2, 1}), Tensor::zeros({2}), 1, 1, "x"), "(2, 1)");
  EXPECT_FATAL_FAILURE(expect_close(Tensor::zeros({2}, DType::f64), Tensor::zeros({2}), 1, 1, "x"), "f64");
  EXPECT_FATAL_FAILURE(expect_close(Tensor(), Tensor::zeros({2}), 1, 1, "x"), "undefined");
}

}  // namespace
}  // namespace tapehead
