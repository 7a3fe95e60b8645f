#include "tapehead/ops/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tapehead/core/view.h"
#include "tapehead/tests/golden_cases.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

CrossEntropyArgs args_of(const GoldenCase& golden) {
  CrossEntropyArgs args;
  args.class_weight = golden.input("class_weight");
  args.reduction = parse_reduction(golden.text("reduction"));
  // PyTorch's default, which its cross_entropy takes with probabilities, too.
  if (!golden.is_none("ignore_index") && golden.integer("ignore_index") != -100)
    args.ignore_index = golden.integer("ignore_index");
  args.label_smoothing = golden.number("label_smoothing");
  return args;
}

TEST(CrossEntropy, AgreesWithPyTorch) {
  for (const GoldenCase& golden : golden_cases("ops.safetensors", "cross_entropy")) {
    const Tensor loss = cross_entropy(golden.inputs.at(0), golden.inputs.at(1), args_of(golden));
    expect_golden(golden, loss, 1e-12, 1e-13);
  }
}

TEST(CrossEntropy, Gradcheck) {
  const Tensor index = Tensor::from<int64_t>({4}, std::vector<int64_t>{2, -100, 0, 4});
  const Tensor weight = Tensor::from<double>({5}, std::vector<double>{0.5, 1, 2, 0, 1.5});
  for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    for (double smoothing : {0.0, 0.3, 1.0}) {
      for (const Tensor& w : {Tensor(), weight}) {
        CrossEntropyArgs args;
        args.reduction = reduction;
        args.label_smoothing = smoothing;
        args.class_weight = w;
        Tensor strided = transpose(random_tensor({5, 4}, 1, 3), 0, 1);
        expect_gradcheck([&](const std::vector<Tensor>& in) { return cross_entropy(in[0], index, args); },
                         {strided.set_requires_grad()});
        Tensor z = random_tensor({2, 5, 3}, 2, 3).set_requires_grad(),
               q = random_tensor({2, 5, 3}, 3).set_requires_grad();
        expect_gradcheck([&](const std::vector<Tensor>& in) { return cross_entropy(in[0], in[1], args); },
                         {z, q});
      }
    }
  }
}

TEST(CrossEntropy, EqualHugeLogitsGiveLogC) {
  CrossEntropyArgs smooth;
  smooth.label_smoothing = 0.5;
  for (double z : {1e20, -1e20, 1e6}) {
    const Tensor logits = Tensor::full({3, 700}, z, DType::f64), target = Tensor::zeros({3}, DType::i64);
    EXPECT_DOUBLE_EQ(cross_entropy(logits, target).item(), std::log(700.0));
    EXPECT_DOUBLE_EQ(cross_entropy(logits, target, smooth).item(), std::log(700.0));
  }
}

// The running maximum moves between blocks: what was summed before must move with it.
TEST(CrossEntropy, LogitsThatGrowAcrossBlocksAgreeWithShiftedOnes) {
  std::vector<double> up(2000), down(2000);
  for (size_t i = 0; i < up.size(); ++i)
    up[i] = 0.01 * static_cast<double>(i), down[up.size() - 1 - i] = up[i];
  CrossEntropyArgs smooth;
  smooth.label_smoothing = 0.25;
  const double a = cross_entropy(Tensor::from<double>({1, 2000}, up),
                                 Tensor::from<int64_t>({1}, std::vector<int64_t>{5}), smooth)
                       .item();
  const double b = cross_entropy(Tensor::from<double>({1, 2000}, down),
                                 Tensor::from<int64_t>({1}, std::vector<int64_t>{1994}), smooth)
                       .item();
  EXPECT_NEAR(a, b, 1e-12 * a);
}

TEST(CrossEntropy, MinusInfinityAtTheTargetGivesInfiniteLossAndFiniteGradient) {
  Tensor logits = Tensor::from<double>({1, 3}, std::vector<double>{-kInf, 1, 2}).set_requires_grad();
  const Tensor loss = cross_entropy(logits, Tensor::zeros({1}, DType::i64));
  EXPECT_EQ(loss.item(), kInf);
  backward(loss);
  const std::vector<double> g = logits.grad().to_vector<double>();
  EXPECT_EQ(g[0], -1);
  EXPECT_NEAR(g[1] + g[2], 1, 1e-15);
}

TEST(CrossEntropy, AllButOneAtMinusInfinity) {
  Tensor logits = Tensor::from<double>({1, 3}, std::vector<double>{-kInf, 7, -kInf}).set_requires_grad();
  const Tensor loss = cross_entropy(logits, Tensor::full({1}, 1, DType::i64));
  EXPECT_EQ(loss.item(), 0);
  backward(loss);
  EXPECT_EQ(logits.grad().to_vector<double>(), (std::vector<double>{0, 0, 0}));
}

// 0 · log 0 is 0, its limit.
TEST(CrossEntropy, ProbabilityZeroAtMinusInfinityAddsNothing) {
  const Tensor logits = Tensor::from<double>({1, 3}, std::vector<double>{-kInf, 1, 1});
  EXPECT_DOUBLE_EQ(
      cross_entropy(logits, Tensor::from<double>({1, 3}, std::vector<double>{0, 0.5, 0.5})).item(),
      std::log(2.0));
}

TEST(CrossEntropy, NaNStaysInItsRow) {
  for (int64_t at : {0, 3, 1200}) {
    Tensor logits = random_tensor({3, 1201}, 5);
    std::vector<double> values = logits.to_vector<double>();
    values[static_cast<size_t>(1201 + at)] = kNaN;
    logits = Tensor::from<double>({3, 1201}, values).set_requires_grad();
    CrossEntropyArgs none;
    none.reduction = Reduction::none;
    const Tensor loss = cross_entropy(logits, Tensor::full({3}, 3, DType::i64), none);
    backward(loss, Tensor::full({3}, 1, DType::f64));
    const std::vector<double> l = loss.to_vector<double>(), g = logits.grad().to_vector<double>();
    EXPECT_TRUE(std::isfinite(l[0]) && std::isnan(l[1]) && std::isfinite(l[2])) << at;
    for (size_t i = 0; i < g.size(); ++i) EXPECT_EQ(std::isnan(g[i]), i / 1201 == 1) << at << " " << i;
  }
}

TEST(CrossEntropy, MaskedRowsMayHoldAnything) {
  Tensor logits = Tensor::from<double>({2, 2}, std::vector<double>{kNaN, kInf, 1, 2}).set_requires_grad();
  const Tensor loss = cross_entropy(logits, Tensor::from<int64_t>({2}, std::vector<int64_t>{-100, 1}));
  backward(loss);
  EXPECT_NEAR(loss.item(), std::log1p(std::exp(-1.0)), 1e-15);
  const std::vector<double> g = logits.grad().to_vector<double>();
  EXPECT_EQ(g[0], 0);
  EXPECT_EQ(g[1], 0);
}

TEST(CrossEntropy, ConfidentTargetKeepsTheDigitsOfItsGradient) {
  // p_target = 1 - 1e-12: p - 1 would keep four digits.
  Tensor logits =
      Tensor::from<double>({1, 2}, std::vector<double>{-std::log(1e12 - 1), 0}).set_requires_grad();
  backward(cross_entropy(logits, Tensor::full({1}, 1, DType::i64)));
  EXPECT_NEAR(logits.grad().to_vector<double>()[1] / -1e-12, 1, 1e-14);
}

TEST(CrossEntropy, NormalizerReplacesTheDenominator) {
  const Tensor z = random_tensor({4, 3}, 9),
               t = Tensor::from<int64_t>({4}, std::vector<int64_t>{0, 1, -100, 2});
  CrossEntropyArgs sum, normalized;
  sum.reduction = Reduction::sum;
  normalized.normalizer = 7;
  EXPECT_DOUBLE_EQ(cross_entropy(z, t, normalized).item(), cross_entropy(z, t, sum).item() / 7);
}

TEST(CrossEntropy, Errors) {
  const Tensor z = Tensor::zeros({2, 3}), t = Tensor::zeros({2}, DType::i64);
  expect_error<ValueError>(
      [&] {
        cross_entropy(z, Tensor::from<int64_t>({2}, std::vector<int64_t>{1, 3}))
            .item();  // or when it is read
      },
      "target 3 in row 1");
  expect_error<ValueError>([&] { cross_entropy(z, Tensor::full({2}, -1, DType::i64)).item(); },
                           "target -1 in row 0");
  expect_error<ValueError>([&] { cross_entropy(z, Tensor::zeros({3}, DType::i64)); }, "target of shape (3,)");
  // Hazard: losses of rows without a class were read though nothing had written them.
  expect_error<ValueError>([&] { cross_entropy(Tensor::zeros({2, 0}), Tensor::zeros({2}, DType::i64)); },
                           "logits of shape (2, 0) have no class");
  expect_error<TypeError>([&] { cross_entropy(z, Tensor::zeros({2})); }, "class indices are i64 or i32");
  expect_error<TypeError>([&] { cross_entropy(t, t); }, "floating logits");
  expect_error<TypeError>(
      [&] {
        cross_entropy(z, Tensor::zeros({2, 3}, DType::f64));
      },
      "class probabilities of f64");
  CrossEntropyArgs args;
  args.label_smoothing = 1.5;
  expect_error<ValueError>([&] { cross_entropy(z, t, args); }, "label_smoothing 1.5");
  args = {};
  args.class_weight = Tensor::zeros({2});
  expect_error<ValueError>([&] { cross_entropy(z, t, args); }, "class_weight of shape (2,)");
  args = {};
  args.normalizer = 0;
  expect_error<ValueError>([&] { cross_entropy(z, t, args); }, "normalizer 0");
  args = {};
  args.ignore_index = -100;
  expect_error<RuntimeError>([&] { cross_entropy(z, z, args); },
                             "ignore_index -100 with class probabilities");
}

}  // namespace
}  // namespace tapehead
