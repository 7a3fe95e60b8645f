#include "tapehead/ops/dropout.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>

#include "tapehead/core/view.h"
#include "tapehead/tests/golden_cases.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

TEST(Dropout, KeepsAndScales) {
  constexpr int64_t n = 1 << 20;
  for (const double p : {0.1, 0.5, 0.9}) {
    Generator random{.seed = 3};
    const auto y = dropout(Tensor::full({n}, 2), p, random).to_vector<float>();
    int64_t kept = 0;
    for (const float v : y) {
      if (v == 0) continue;
      ++kept;
      ASSERT_NEAR(v, 2 / (1 - p), 1e-6 / (1 - p));
    }
    EXPECT_NEAR(static_cast<double>(kept) / n, 1 - p, 5 * std::sqrt(p * (1 - p) / n));
  }
}

TEST(Dropout, ElementsComeFromTheirWords) {
  Generator random{.seed = 3, .next = 10};
  const auto y = dropout(Tensor::full({9}, 1), 0.5, random).to_vector<float>();
  for (size_t i = 0; i < y.size(); ++i) {
    EXPECT_EQ(y[i], to_uniform(philox(3, 10 + i / 4)[i % 4]) >= 0.5f ? 2.0f : 0.0f) << i;
  }
  EXPECT_EQ(random.next, 13u);
}

TEST(Dropout, GradientsEqualDifferences) {
  const auto drop = [](double p) {
    return [p](const std::vector<Tensor>& x) {
      Generator random{.seed = 5};  // the same numbers in every call
      return dropout(x[0], p, random);
    };
  };
  for (const double p : {0.0, 0.3, 0.8}) {
    for (const Shape& shape : {Shape{3, 5}, Shape{}, Shape{1, 1}, Shape{0, 3}}) {
      expect_gradcheck(drop(p), {random_tensor(shape, 1).set_requires_grad()});
    }
    expect_gradcheck(drop(p), {transpose(random_tensor({3, 5}, 1), 0, 1).set_requires_grad()});
    expect_gradcheck(drop(p), {slice(random_tensor({3, 5}, 1), 1, 0, 5, 2).set_requires_grad()});
  }
}

// Element i draws number i of the logical order, wherever it stands in memory; so does its gradient.
TEST(Dropout, StridesDoNotMatter) {
  Generator a{.seed = 5}, b{.seed = 5};
  const Tensor x = random_tensor({3, 5}, 1);
  expect_close(dropout(transpose(x, 0, 1), 0.5, a), dropout(transpose(x, 0, 1).clone(), 0.5, b), 0, 0,
               "transposed");
}

TEST(Dropout, SameForAnyNumberOfThreads) {
  const int before = omp_get_max_threads();
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    Generator random{.seed = 9};
    Tensor x = random_tensor({100'003}, 1, 1, DType::f32).set_requires_grad();
    const Tensor y = dropout(x, 0.3, random);
    backward(y, x.detach());
    results.push_back(y.to_vector<float>());
    EXPECT_EQ(x.grad().to_vector<float>(), results.back());
  }
  omp_set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(Dropout, SavesNothing) {
  Generator random;
  Tensor x = Tensor::full({100}, 1).set_requires_grad();
  const MemoryScope scope("dropout");
  const Tensor y = dropout(x, 0.5, random);
  EXPECT_EQ(memory_stats(test_device(), "dropout").live_bytes, y.bytes());
}

TEST(Dropout, ZeroProbabilityIsTheIdentity) {
  Generator random{.seed = 1, .next = 4};
  Tensor x = random_tensor({3}, 1).set_requires_grad();
  const Tensor y = dropout(x, 0, random);
  EXPECT_EQ(random.next, 4u);
  EXPECT_EQ(y.storage(), x.storage());
  backward(y, Tensor::full({3}, 2, DType::f64));
  EXPECT_EQ(x.grad().to_vector<double>(), std::vector<double>({2, 2, 2}));
}

TEST(Dropout, Errors) {
  Generator random;
  const Tensor x({3});
  expect_error<ValueError>([&] { dropout(x, 1, random); }, "probability 1:");
  expect_error<ValueError>([&] { dropout(x, -0.1, random); }, "probability -0.1:");
  expect_error<ValueError>([&] { dropout(x, std::nan(""), random); }, "nan");
  expect_error<TypeError>([&] { dropout(Tensor({3}, DType::i64), 0.5, random); }, "i64");
}

}  // namespace
}  // namespace tapehead
