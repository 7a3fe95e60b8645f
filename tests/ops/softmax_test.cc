#include "tapehead/ops/softmax.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>

#include "tapehead/tests/golden_cases.h"
#include "tapehead/tests/ops/instruction_sets.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Op {
  const char* name;
  Tensor (*apply)(const Tensor&, int64_t);
};
constexpr Op kOps[] = {{"softmax", softmax}, {"log_softmax", log_softmax}};

TEST(Softmax, PyTorch) {
  for (const Op& op : kOps) {
    for (const GoldenCase& c : golden_cases("ops.safetensors", op.name)) {
      expect_golden(c, op.apply(c.input("x"), c.integer("axis")), 1e-14, 1e-15);
    }
  }
}

TEST(Softmax, GradientsEqualDifferences) {
  for (const Op& op : kOps) {
    for (const int64_t axis : {0, 1, 2, -1}) {
      SCOPED_TRACE(fmt::format("{} along {}", op.name, axis));
      const auto function = [&](const std::vector<Tensor>& x) { return op.apply(x[0], axis); };
      expect_gradcheck(function, {random_tensor({2, 3, 4}, 1).set_requires_grad()});
      expect_gradcheck(function, {random_tensor({1, 1, 1}, 2).set_requires_grad()});
      expect_gradcheck(
          function, {permute(slice(random_tensor({4, 6, 2}, 3), 1, 0, 6, 2), {2, 0, 1}).set_requires_grad()});
      expect_gradcheck(function, {Tensor({2, 0, 3}, DType::f64).set_requires_grad()});
      expect_gradcheck([&](const std::vector<Tensor>& x) { return transpose(op.apply(x[0], axis), 0, 2); },
                       {random_tensor({2, 3, 2}, 4).set_requires_grad()});
    }
    expect_gradcheck([&](const std::vector<Tensor>& x) { return op.apply(x[0], 0); },
                     {random_tensor({37}, 5).set_requires_grad()});
  }
}

TEST(Softmax, Errors) {
  for (const Op& op : kOps) {
    expect_error<ValueError>(
        [&] {
          op.apply(Tensor({2, 3}), 2);
        },
        fmt::format("[{}] axis 2 is out of range for shape (2, 3)", op.name));
    expect_error<ValueError>([&] { op.apply(Tensor::scalar(1), 0); }, "out of range for shape ()");
    expect_error<TypeError>([&] { op.apply(Tensor({2}, DType::i64), 0); },
                            fmt::format("[{}] takes a floating tensor", op.name));
  }
}

std::vector<double> softmax_of(const std::vector<double>& x, DType dtype) {
  return softmax(Tensor::from<double>({static_cast<int64_t>(x.size())}, x).to(dtype), 0).to_vector<double>();
}

TEST(Softmax, ExtremeLogits) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    EXPECT_EQ(softmax_of({1e20, 1e20, 1e20, 1e20}, dtype), (std::vector<double>(4, 0.25)));
    EXPECT_EQ(softmax_of({-1e30, 0, -kInfinity}, dtype), (std::vector<double>{0, 1, 0}));
    EXPECT_EQ(softmax_of({-1000, 1000}, dtype), (std::vector<double>{0, 1}));
    EXPECT_EQ(softmax_of({7}, dtype), (std::vector<double>{1}));
    EXPECT_EQ(log_softmax(Tensor::from<double>({2}, {-1000, 1000}).to(dtype), 0).to_vector<double>(),
              (std::vector<double>{-2000, 0}));
    for (const double v : softmax_of({-kInfinity, -kInfinity}, dtype)) EXPECT_TRUE(std::isnan(v));
    for (const double v : softmax_of({kInfinity, 0}, dtype)) EXPECT_TRUE(std::isnan(v));
  }
}

TEST(Softmax, NaNStaysInItsRow) {
  for (const Op& op : kOps) {
    for (const int64_t columns : {2, 16, 50}) {
      for (const int64_t at : {int64_t{0}, columns - 1}) {
        const Tensor x = random_tensor({3, columns}, 6, 1, DType::f32);
        Tensor poisoned = x.clone();
        set_element(poisoned, columns + at, kNaN);
        const std::vector<double> clean = op.apply(x, 1).to_vector<double>(),
                                  y = op.apply(poisoned, 1).to_vector<double>();
        for (int64_t i = 0; i < 3 * columns; ++i) {
          const size_t k = static_cast<size_t>(i);
          if (i / columns == 1) {
            EXPECT_TRUE(std::isnan(y[k]));
          } else {
            EXPECT_EQ(y[k], clean[k]);
          }
        }
      }
    }
  }
}

// f32 against f64 on the same logits, over widths with and without a tail.
TEST(Softmax, AccurateInF32) {
  for_each_instruction_set([] {
    for (const int64_t columns : {1, 3, 16, 100, 5000}) {
      const Tensor x = random_tensor({3, columns}, 7, 20, DType::f32),
                   g = random_tensor({3, columns}, 8, 1, DType::f32);
      for (const Op& op : kOps) {
        const auto forward_and_gradient = [&](DType dtype) {
          Tensor leaf = x.to(dtype).clone().set_requires_grad();
          const Tensor y = op.apply(leaf, 1);
          backward(y, g.to(dtype));
          return std::pair(y.to(DType::f64), leaf.grad().to(DType::f64));
        };
        const auto [y, gx] = forward_and_gradient(DType::f32);
        const auto [exact, exact_gx] = forward_and_gradient(DType::f64);
        const std::string what = fmt::format("{} of {} columns", op.name, columns);
        // Where the row's sum is near 1, its logarithm is as coarse as the sum.
        expect_close(y, exact, 4e-6, op.apply == log_softmax ? 1e-7 : 1e-30, what);
        expect_close(gx, exact_gx, 4e-6, 1e-6, what);
      }
    }
  });
}

TEST(Softmax, RowDoesNotDependOnItsPlace) {
  if (test_device().kind == Device::cuda)
    GTEST_SKIP() << "on cuda a row's address divides its sum into octets";
  const Tensor x = random_tensor({501, 77}, 9, 3, DType::f32);
  for (const Op& op : kOps) {
    const Tensor y = op.apply(x, 1);
    for (const int64_t row : {0, 1, 250, 500}) {
      EXPECT_EQ(op.apply(select(x, 0, row).clone(), 0).to_vector<float>(),
                select(y, 0, row).to_vector<float>());
    }
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    EXPECT_EQ(op.apply(x, 1).to_vector<float>(), y.to_vector<float>());
    omp_set_num_threads(threads);
  }
}

TEST(Softmax, HalfPrecision) {
  for (const DType half : {DType::f16, DType::bf16}) {
    Tensor x = random_tensor({3, 40}, 10, 4).to(half).set_requires_grad();
    Tensor wide = x.to(DType::f32).set_requires_grad();
    for (const Op& op : kOps) {
      const Tensor y = op.apply(x, 1), wide_y = op.apply(wide, 1);
      EXPECT_EQ(y.to_vector<float>(), wide_y.to(half).to_vector<float>());
      x.set_grad({});
      wide.set_grad({});
      const Tensor g = random_tensor({3, 40}, 11).to(half);
      backward(y, g);
      backward(wide_y, g.to(DType::f32));
      expect_close(x.grad().to(DType::f32), wide.grad(), 4 * epsilon(half), 4 * epsilon(half), op.name);
    }
  }
}

}  // namespace
}  // namespace tapehead
