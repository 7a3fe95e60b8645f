// Cases that broke similar implementations: each test is named for its hazard.
#include <cmath>
#include <limits>

#include "tapehead/core/memory.h"
#include "tapehead/core/view.h"
#include "tapehead/tests/ops/head_problem.h"

namespace tapehead {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

using Problem = HeadProblem;

// ---- Masked rows

TEST(LinearCrossEntropyHazards, MaskedRowsEqualRemovedRowsBitForBit) {
  Problem p(9, 4, 6, 1, DType::f32);
  p.mask({0, 3, 4, 8});
  const Tensor rows = Tensor::from<int64_t>({5}, std::vector<int64_t>{1, 2, 5, 6, 7});
  std::vector<float> kept;
  std::vector<int64_t> kept_target;
  for (int64_t r : rows.to_vector<int64_t>()) {
    for (float v : select(p.input, 0, r).to_vector<float>()) kept.push_back(v);
    kept_target.push_back(p.target.to_vector<int64_t>()[static_cast<size_t>(r)]);
  }
  Tensor input = Tensor::from<float>({5, 4}, kept).set_requires_grad();
  for (Reduction reduction : {Reduction::mean, Reduction::sum}) {
    p.clear();
    input.set_grad({});
    LinearCrossEntropyArgs args = chunked(2, reduction);
    const Tensor masked = p.loss(args);
    backward(masked);
    const std::vector<float> gw = p.weight.grad().to_vector<float>(), gx = p.input.grad().to_vector<float>();
    p.weight.set_grad({});
    args.bias = p.bias;
    const Tensor removed =
        linear_cross_entropy(input, p.weight, Tensor::from<int64_t>({5}, kept_target), args);
    backward(removed);
    EXPECT_EQ(masked.item(), removed.item());
    EXPECT_EQ(gw, p.weight.grad().to_vector<float>());
    std::vector<float> expected(36, 0.0f);
    for (size_t i = 0; i < 5; ++i) {
      for (size_t f = 0; f < 4; ++f)
        expected[static_cast<size_t>(rows.to_vector<int64_t>()[i]) * 4 + f] =
            input.grad().to_vector<float>()[i * 4 + f];
    }
    EXPECT_EQ(gx, expected);
  }
}

TEST(LinearCrossEntropyHazards, MaskedRowsMayHoldNaN) {
  for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    Problem p(3, 2, 4);
    p.mask({1});
    std::vector<double> x = p.input.to_vector<double>();
    x[2] = x[3] = kNaN;
    p.input = Tensor::from<double>({3, 2}, x).set_requires_grad();
    const Tensor loss = p.loss(chunked(2, reduction));
    backward(loss, reduction == Reduction::none ? Tensor::full({3}, 1, DType::f64) : Tensor());
    for (const Tensor& t : {loss, p.input.grad(), p.weight.grad(), p.bias.grad()}) {
      for (double v : t.to_vector<double>()) EXPECT_TRUE(std::isfinite(v)) << name(reduction);
    }
    EXPECT_EQ(p.input.grad().to_vector<double>()[2], 0);
  }
}

TEST(LinearCrossEntropyHazards, MaskedRowsWithClassWeightsReadNoWeightOfTheirs) {
  Problem p(4, 2, 3);
  p.mask({0, 2});
  LinearCrossEntropyArgs args = chunked(2), reference;
  args.class_weight = reference.class_weight = Tensor::from<double>({3}, std::vector<double>{2, 0.5, 1});
  expect_same(p, args, reference, {}, 1e-13, "class weights");
}

TEST(LinearCrossEntropyHazards, NothingUnmasked) {
  for (int64_t N : {0, 3}) {
    Problem p(N, 2, 4);
    p.target = Tensor::full({N}, -100, DType::i64);
    const Tensor mean = p.loss(chunked(2));
    EXPECT_TRUE(std::isnan(mean.item()));
    backward(mean);
    for (double v : p.weight.grad().to_vector<double>()) EXPECT_TRUE(std::isnan(v));
    p.clear();
    const Tensor sum = p.loss(chunked(2, Reduction::sum));
    EXPECT_EQ(sum.item(), 0);
    backward(sum);
    for (double v : p.weight.grad().to_vector<double>()) EXPECT_EQ(v, 0);
    const Tensor none = p.loss(chunked(2, Reduction::none));
    EXPECT_EQ(none.to_vector<double>(), std::vector<double>(static_cast<size_t>(N), 0.0));
    backward(none, Tensor::full({N}, 1, DType::f64));
  }
}

// ---- none

TEST(LinearCrossEntropyHazards, NoneWeighsRowsBeforeSummingTheWeightGradient) {
  Problem p(7, 3, 5);
  p.mask({0});
  LinearCrossEntropyArgs reference;
  reference.reduction = Reduction::none;
  expect_same(p, chunked(2, Reduction::none), reference, random_tensor({7}, 3, 5), 1e-12, "random upstream");
  const Tensor strided = slice(random_tensor({14}, 4), 0, 0, 14, 2);
  expect_same(p, chunked(2, Reduction::none), reference, strided, 1e-12, "strided upstream");
  expect_same(p, chunked(2, Reduction::none), reference, expand(Tensor::full({1}, 3, DType::f64), {7}), 1e-12,
              "expanded upstream");
}

TEST(LinearCrossEntropyHazards, NoneTakesAnyNumberOfRetainedBackwards) {
  Problem p(5, 3, 4);
  const Tensor loss = p.loss(chunked(2, Reduction::none)), one = Tensor::full({5}, 1, DType::f64);
  backward(loss, one, true);
  const std::vector<double> once = p.weight.grad().to_vector<double>();
  backward(loss, one, true);
  backward(loss, one, false);
  const std::vector<double> thrice = p.weight.grad().to_vector<double>();
  for (size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(thrice[i], 3 * once[i], 1e-14);
  expect_error<RuntimeError>([&] { backward(loss, one); }, "retain_graph");
}

// ---- Upstream gradients

TEST(LinearCrossEntropyHazards, UpstreamOfTwoThenRetainedOfThree) {
  Problem p(6, 3, 5);
  backward(p.loss(chunked(4)));
  const std::vector<double> one = p.weight.grad().to_vector<double>();
  p.clear();
  const Tensor loss = p.loss(chunked(4, Reduction::mean, true));
  backward(loss, Tensor::scalar(2, DType::f64), true);
  const std::vector<double> two = p.weight.grad().to_vector<double>();
  p.clear();
  backward(loss, Tensor::scalar(3, DType::f64), true);
  const std::vector<double> three = p.weight.grad().to_vector<double>();
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(two[i], 2 * one[i], 1e-15);
    EXPECT_NEAR(three[i], 3 * one[i], 1e-15);
  }
}

TEST(LinearCrossEntropyHazards, UpstreamZeroGivesZero) {
  Problem p(3, 2, 4, 1, DType::f32);
  p.input = Tensor::full({3, 2}, 1e38).set_requires_grad();
  p.weight = Tensor::full({4, 2}, 1e-10).set_requires_grad();
  backward(p.loss(chunked(2, Reduction::sum)), Tensor::scalar(0));
  for (const Tensor& x : {p.input, p.weight, p.bias}) {
    for (float v : x.grad().to_vector<float>()) EXPECT_EQ(v, 0);
  }
}

// ---- Numbers

TEST(LinearCrossEntropyHazards, LogitsFarFromZero) {
  Problem p(4, 3, 40);
  Problem shifted = p;
  shifted.bias = Tensor::from<double>({40},
                                      [&] {
                                        std::vector<double> b = p.bias.to_vector<double>();
                                        for (double& v : b) v += 1e6;
                                        return b;
                                      }())
                     .set_requires_grad();
  EXPECT_NEAR(p.loss(chunked(2)).item(), shifted.loss(chunked(2)).item(), 1e-8);
}

TEST(LinearCrossEntropyHazards, EqualLogitsOf1e20GiveLogC) {
  for (DType dtype : {DType::f64, DType::f32}) {
    const Tensor x = Tensor::full({3, 1}, 1e10, dtype), w = Tensor::full({9, 1}, 1e10, dtype);
    EXPECT_NEAR(linear_cross_entropy(x, w, Tensor::zeros({3}, DType::i64), chunked(2)).item(), std::log(9.0),
                1e-6);
  }
}

TEST(LinearCrossEntropyHazards, BiasOfMinusInfinityOnAllClassesButOne) {
  Problem p(3, 2, 4);
  p.bias = Tensor::from<double>({4}, std::vector<double>{-kInf, -kInf, 0.5, -kInf}).set_requires_grad();
  p.target = Tensor::full({3}, 2, DType::i64);
  const Tensor loss = p.loss(chunked(2));
  EXPECT_EQ(loss.item(), 0);
  backward(loss);
  for (double v : p.input.grad().to_vector<double>()) EXPECT_EQ(v, 0);
}

TEST(LinearCrossEntropyHazards, TargetAtMinusInfinity) {
  Problem p(3, 2, 4);
  p.bias = Tensor::from<double>({4}, std::vector<double>{-kInf, 0, 0.5, 0}).set_requires_grad();
  p.target = Tensor::zeros({3}, DType::i64);
  const Tensor loss = p.loss(chunked(2));
  EXPECT_EQ(loss.item(), kInf);
  backward(loss);
  for (const Tensor& x : {p.input, p.weight, p.bias}) {
    for (double v : x.grad().to_vector<double>()) EXPECT_TRUE(std::isfinite(v));
  }
}

// Sums over no class yet must not be rescaled: 0 · exp(1000) is NaN.
TEST(LinearCrossEntropyHazards, FirstBlockOfClassesAllMasked) {
  const int64_t C = 1100;
  for (DType dtype : {DType::f64, DType::f32}) {
    for (double level : {-1000.0, 1000.0}) {
      Problem p(2, 1, C, 1, dtype);
      std::vector<double> bias(static_cast<size_t>(C), -kInf);
      bias[700] = bias[1050] = level;
      p.input = Tensor::zeros({2, 1}, dtype).set_requires_grad();
      p.bias = Tensor::from<double>({C}, bias).to(dtype).set_requires_grad();
      p.target = Tensor::full({2}, 700, DType::i64);
      CrossEntropyStats stats;
      LinearCrossEntropyArgs args = chunked(1);
      args.stats = &stats;
      const Tensor loss = p.loss(args);
      EXPECT_NEAR(loss.item(), std::log(2.0), 1e-6);
      EXPECT_NEAR(stats.entropy.to_vector<double>()[0], std::log(2.0), 1e-6);
      backward(loss);
      EXPECT_NEAR(p.bias.grad().to_vector<double>()[1050], 0.5, 1e-6);
    }
  }
}

TEST(LinearCrossEntropyHazards, NaNPoisonsItsOwnRowOnly) {
  Problem p(4, 2, 5);
  std::vector<double> x = p.input.to_vector<double>();
  x[2] = kNaN;
  p.input = Tensor::from<double>({4, 2}, x).set_requires_grad();
  const Tensor loss = p.loss(chunked(4, Reduction::none));
  backward(loss, Tensor::full({4}, 1, DType::f64));
  const std::vector<double> l = loss.to_vector<double>(), g = p.input.grad().to_vector<double>();
  for (size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(std::isnan(l[r]), r == 1);
    EXPECT_EQ(std::isnan(g[2 * r]), r == 1);
  }
}

// ---- Sizes

TEST(LinearCrossEntropyHazards, SmallestSizes) {
  for (auto [N, F, C] : std::vector<std::array<int64_t, 3>>{
           {1, 3, 4}, {4, 1, 3}, {4, 3, 1}, {1, 1, 1}, {3, 600, 2}, {2, 3, 1500}}) {
    Problem p(N, F, C);
    expect_same(p, chunked(2), {}, {}, 1e-12, fmt::format("{} {} {}", N, F, C));
  }
}

// More logits than 2^31, in the memory of a few rows.
TEST(LinearCrossEntropyHazards, MoreThanTwoToThe31Logits) {
  if (device_is_emulated()) GTEST_SKIP() << "an emulated device takes minutes for so many logits";
  const int64_t N = 70000, C = 31000;
  const Tensor input = random_tensor({N, 1}, 1, 1, DType::f32);
  const Tensor weight = random_tensor({C, 1}, 2, 1, DType::f32);
  const Tensor target = random_indices({N}, static_cast<uint64_t>(C), 3);
  reset_peak(test_device());
  const int64_t before = memory_stats(test_device()).live_bytes;
  const Tensor loss = linear_cross_entropy(input, weight, target, chunked(64, Reduction::none));
  EXPECT_LT(memory_stats(test_device()).peak_bytes - before, int64_t{16} << 20);
  // The last row alone gives the same: nothing wrapped on the way to it.
  const Tensor last = linear_cross_entropy(slice(input, 0, N - 1, N), weight, slice(target, 0, N - 1, N),
                                           chunked(1, Reduction::none));
  EXPECT_EQ(loss.to_vector<float>().back(), last.to_vector<float>().back());
}

}  // namespace
}  // namespace tapehead
