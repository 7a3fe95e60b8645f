#include "tapehead/ops/reduce.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <map>

#include "tapehead/tests/golden_cases.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Op {
  const char* name;
  Tensor (*apply)(const Tensor&, const std::vector<int64_t>&, bool);
};
constexpr Op kOps[] = {{"sum", sum}, {"mean", mean}, {"max", max}};

TEST(Reduce, PyTorch) {
  for (const Op& op : kOps) {
    for (const GoldenCase& c : golden_cases("ops.safetensors", op.name)) {
      const std::vector<int64_t> axes =
          c.is_none("axis") ? std::vector<int64_t>() : std::vector<int64_t>{c.integer("axis")};
      const bool keepdim = c.has("keepdim") && c.flag("keepdim");
      expect_golden(c, op.apply(c.input("x"), axes, keepdim), 1e-15, 1e-15);
    }
  }
}

TEST(Reduce, GradientsEqualDifferences) {
  const std::vector<std::vector<int64_t>> axes = {{}, {0}, {1}, {-1}, {0, 2}, {2, 1}, {0, 1, 2}};
  for (const Op& op : kOps) {
    for (const std::vector<int64_t>& a : axes) {
      for (const bool keepdim : {false, true}) {
        SCOPED_TRACE(fmt::format("{} over {}", op.name, fmt::join(a, ", ")));
        const auto function = [&](const std::vector<Tensor>& x) { return op.apply(x[0], a, keepdim); };
        expect_gradcheck(function, {random_tensor({2, 3, 4}, 1).set_requires_grad()});
        expect_gradcheck(function, {random_tensor({1, 1, 1}, 2).set_requires_grad()});
        expect_gradcheck(
            function,
            {permute(slice(random_tensor({4, 6, 2}, 3), 1, 0, 6, 2), {2, 0, 1}).set_requires_grad()});
        if (op.apply != max) expect_gradcheck(function, {Tensor({2, 0, 3}, DType::f64).set_requires_grad()});
      }
    }
    expect_gradcheck([&](const std::vector<Tensor>& x) { return op.apply(x[0], {}, false); },
                     {random_tensor({}, 4).set_requires_grad()});
    expect_gradcheck([&](const std::vector<Tensor>& x) { return op.apply(x[0], {0}, false); },
                     {Tensor({2, 0}, DType::f64).set_requires_grad()});
    // A gradient that is itself strided.
    expect_gradcheck(
        [&](const std::vector<Tensor>& x) { return transpose(op.apply(x[0], {1}, false), 0, 1); },
        {random_tensor({2, 3, 4}, 5).set_requires_grad()});
  }
}

TEST(Reduce, Shapes) {
  const Tensor x({2, 3, 4});
  EXPECT_EQ(sum(x).shape(), Shape{});
  EXPECT_EQ(sum(x, {}, true).shape(), (Shape{1, 1, 1}));
  EXPECT_EQ(sum(x, {-1}).shape(), (Shape{2, 3}));
  EXPECT_EQ(sum(x, {2, 0}).shape(), (Shape{3}));
  EXPECT_EQ(sum(x, {2, 0}, true).shape(), (Shape{1, 3, 1}));
}

TEST(Reduce, Errors) {
  const Tensor x({2, 3});
  for (const Op& op : kOps) {
    expect_error<ValueError>([&] { op.apply(x, {2}, false); },
                             fmt::format("[{}] axis 2 is out of range for shape (2, 3)", op.name));
    expect_error<ValueError>(
        [&] {
          op.apply(x, {0, -2}, false);
        },
        fmt::format("[{}] axis -2 of shape (2, 3) is given twice", op.name));
    expect_error<ValueError>([&] { op.apply(Tensor::scalar(1), {0}, false); }, "out of range for shape ()");
    expect_error<TypeError>([&] { op.apply(Tensor({2}, DType::i64), {}, false); }, "i64");
  }
  expect_error<ValueError>([] { max(Tensor({0})); }, "[max] of no elements");
  expect_error<ValueError>([] { max(Tensor({2, 0}), {1}); }, "(2, 0)");
}

TEST(Reduce, Nothing) {
  EXPECT_EQ(sum(Tensor({2, 0}), {1}).to_vector<double>(), (std::vector<double>{0, 0}));
  EXPECT_TRUE(std::isnan(mean(Tensor({0})).item()));
  EXPECT_EQ(max(Tensor({2, 0}), {0}).shape(), (Shape{0}));
}

TEST(Max, NaNWinsInItsRowAlone) {
  for (const int64_t columns : {3, 40, 40000}) {  // every path through the kernel
    for (const int64_t at : {int64_t{0}, columns / 2, columns - 1}) {
      Tensor x = Tensor::full({2, columns}, 1, DType::f64);
      set_element(x, at, kNaN);
      const std::vector<double> y = max(x, {1}).to_vector<double>();
      EXPECT_TRUE(std::isnan(y[0]) && y[1] == 1) << columns << ' ' << at;
    }
  }
}

TEST(Max, MinusInfinityIsAValue) {
  const double low = -std::numeric_limits<double>::infinity();
  Tensor x = Tensor::full({4}, low, DType::f64).set_requires_grad();
  const Tensor y = max(x);
  EXPECT_EQ(y.item(), low);
  backward(y);
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>(4, 0.25)));
}

TEST(Max, TiesShareTheGradient) {
  Tensor x = Tensor::from<double>({2, 4}, {1, 3, 3, 2, 5, 5, 5, 5}).set_requires_grad();
  backward(max(x, {1}), Tensor::from<double>({2}, {1, 2}));
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0, 0.5, 0.5, 0, 0.5, 0.5, 0.5, 0.5}));
  Tensor many = Tensor::full({100000}, 7, DType::f64).set_requires_grad();  // counted by several threads
  backward(max(many));
  EXPECT_EQ(max(many.grad()).item(), 1e-5);
}

// ---- The kernel, against plain loops

// For every output, a row of the elements behind it: x's elements in order, keyed by the kept indices.
std::vector<std::vector<double>> elements_behind(const Tensor& x, const std::vector<int64_t>& axes) {
  const std::vector<double> values = x.to_vector<double>();
  std::map<std::vector<int64_t>, std::vector<double>> groups;
  for (int64_t i = 0; i < x.numel(); ++i) {
    std::vector<int64_t> index(static_cast<size_t>(x.dim()));
    for (int64_t axis = x.dim() - 1, rest = i; axis >= 0; --axis) {
      index[static_cast<size_t>(axis)] = rest % x.size(axis);
      rest /= x.size(axis);
    }
    for (const int64_t axis : axes) index[static_cast<size_t>(axis)] = 0;
    groups[index].push_back(values[static_cast<size_t>(i)]);
  }
  std::vector<std::vector<double>> result;
  for (auto& [index, group] : groups) result.push_back(std::move(group));
  return result;
}

TEST(Reduce, EveryLayout) {
  const Tensor base = random_tensor({6, 300, 36}, 6, 1, DType::f32);
  const std::vector<Tensor> inputs = {base,
                                      permute(base, {2, 0, 1}),
                                      permute(base, {1, 2, 0}),
                                      slice(base, 2, 1, 36, 3),
                                      expand(select(base, 0, 1), {5, 300, 36}),
                                      slice(base, 1, 0, 7)};
  for (const Tensor& x : inputs) {
    for (const std::vector<int64_t>& axes :
         std::vector<std::vector<int64_t>>{{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}}) {
      SCOPED_TRACE(fmt::format("{} over {}", x.shape(), fmt::join(axes, ", ")));
      const auto groups = elements_behind(x, axes);
      const std::vector<float> sums = sum(x, axes).to_vector<float>(),
                               largest = max(x, axes).to_vector<float>();
      ASSERT_EQ(sums.size(), groups.size());
      for (size_t i = 0; i < groups.size(); ++i) {
        double total = 0;
        for (const double v : groups[i]) total += v;
        EXPECT_NEAR(sums[i], total, 1e-7 * std::abs(total) + 1e-12);
        EXPECT_EQ(largest[i], *std::max_element(groups[i].begin(), groups[i].end()));
      }
    }
  }
}

// f32 sums in f32 would stop at 2^24 ones, and lose digits long before.
TEST(Sum, LargeSumsAreAccurate) {
  EXPECT_EQ(sum(Tensor::full({20'000'001}, 1)).item(), 20'000'001.0f);
  EXPECT_EQ(mean(Tensor::full({3, 1'000'000}, 0.1), {1}).to_vector<float>(), (std::vector<float>(3, 0.1f)));
  EXPECT_EQ(sum(Tensor::full({100'000, 2}, 1), {0}).to_vector<float>(),
            (std::vector<float>{100'000, 100'000}));
  // bf16 has 8 bits: only a wide sum, rounded once, is right.
  EXPECT_EQ(sum(Tensor::full({4096}, 1, DType::bf16)).item(), 4096);
}

// 257 outputs: how they are cut into blocks and among threads must not choose the order of their sums.
TEST(Reduce, ThreadsDoNotChangeABit) {
  const int threads = omp_get_max_threads();
  const Tensor x = random_tensor({800, 257}, 7, 1.0 / 3);  // sums are inexact even in f64
  for (const std::vector<int64_t>& axes : {std::vector<int64_t>{}, {0}, {1}}) {
    std::vector<std::vector<double>> results;
    for (const int count : {1, 2, 3}) {
      omp_set_num_threads(count);
      results.push_back(sum(x, axes).to_vector<double>());
    }
    omp_set_num_threads(threads);
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
  }
}

// The tape's own sum: gradients of what was broadcast.
TEST(Accumulate, SumsWhatWasBroadcast) {
  const Tensor gradient = random_tensor({50, 6, 70}, 8);
  for (const Shape& shape : {Shape{70}, Shape{6, 1}, Shape{50, 1, 70}, Shape{1, 6, 1}, Shape{}}) {
    Tensor x = Tensor::zeros(shape, DType::f64).set_requires_grad();
    backward(expand(x, {50, 6, 70}), gradient);
    std::vector<int64_t> axes;
    for (int64_t axis = 0; axis < 3; ++axis) {
      const int64_t own = axis - (3 - x.dim());
      if (own < 0 || x.size(own) == 1) axes.push_back(axis);
    }
    expect_close(x.grad(), reshape(sum(gradient, axes), shape.sizes()), 1e-15, 0, shape.str());
  }
}

}  // namespace
}  // namespace tapehead
