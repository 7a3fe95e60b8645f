// Tensors of random numbers: which words of which block an element comes from, and how they are distributed.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tapehead/backends/backend.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

Tensor normal(const Shape& shape, double mean, double deviation, uint64_t first = 0,
              DType dtype = DType::f32) {
  Tensor y(shape, dtype);
  backend(y).normal(mean, deviation, /*seed=*/7, first, y);
  return y;
}

TEST(RandomKernels, ElementsComeFromTheirWords) {
  for (const int64_t n : {0, 1, 3, 4, 5, 11}) {
    const auto z = normal({n}, 0.5, 2, 100, DType::f64).to_vector<double>();
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      const auto words = philox(7, 100 + i / 4);
      const size_t pair = i % 4 / 2 * 2;
      const double radius = std::sqrt(-2 * std::log((words[pair] + 1.0) / 4294967296.0));
      const double angle = 2 * std::numbers::pi * words[pair + 1] / 4294967296.0;
      EXPECT_NEAR(z[i], 0.5 + 2 * radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle)), 1e-14);
    }
  }
}

TEST(RandomKernels, OneRangeOrTwo) {
  const auto whole = normal({1000}, 0, 1, 5).to_vector<float>(),
             rest = normal({600}, 0, 1, 105).to_vector<float>();
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), whole.begin() + 400));
}

TEST(RandomKernels, SameForAnyNumberOfThreads) {
  const int before = omp_get_max_threads();
  std::vector<std::vector<float>> z;
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    z.push_back(normal({100'003}, 0, 1).to_vector<float>());
  }
  omp_set_num_threads(before);
  EXPECT_EQ(z[0], z[1]);
  EXPECT_EQ(z[0], z[2]);
}

// Standard errors for n numbers: mean 1/sqrt(n), variance sqrt(2/n); five of them.
TEST(RandomKernels, Moments) {
  constexpr int64_t n = 1 << 20;
  const auto moments = [](const std::vector<double>& x, double& mean, double& variance) {
    mean = variance = 0;
    for (const double v : x) mean += v / n;
    for (const double v : x) variance += (v - mean) * (v - mean) / n;
  };
  double mean, variance;
  moments(normal({n}, 0, 1).to_vector<double>(), mean, variance);
  EXPECT_NEAR(mean, 0, 5.0 / 1024);
  EXPECT_NEAR(variance, 1, 5 * std::sqrt(2.0) / 1024);
  // Both of a pair, and neighbours, are uncorrelated; beyond two deviations lie 4.55 %.
  const auto z = normal({n}, 0, 1).to_vector<double>();
  double product = 0, tail = 0;
  for (size_t i = 0; i + 1 < z.size(); ++i) {
    product += z[i] * z[i + 1] / n;
    tail += std::abs(z[i]) > 2 ? 1.0 / n : 0;
  }
  EXPECT_NEAR(product, 0, 5.0 / 1024);
  EXPECT_NEAR(tail, 0.0455003, 5 * 0.2084 / 1024);
}

}  // namespace
}  // namespace tapehead
