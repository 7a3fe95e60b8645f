// The product's kernel, called with shapes already checked: layouts, edges, and what beta = 0 promises.
#include <gtest/gtest.h>
#include <omp.h>
#include <sys/mman.h>

#include <cmath>
#include <limits>

#include "tapehead/backends/backend.h"
#include "tapehead/backends/cpu/matmul_openblas.h"
#include "tapehead/core/view.h"
#include "tapehead/tests/golden_cases.h"
#include "tapehead/tests/ops/instruction_sets.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

// alpha · a·b + beta · y, number by number in f64.
Tensor naive_product(double alpha, const Tensor& a, const Tensor& b, double beta, const Tensor& y) {
  const int64_t M = y.size(-2), N = y.size(-1), K = a.size(-1),
                count = y.numel() == 0 ? 0 : y.numel() / (M * N);
  std::vector<int64_t> batch(y.shape().begin(), y.shape().end() - 2);
  const auto expanded = [&](const Tensor& x) {
    std::vector<int64_t> sizes = batch;
    sizes.push_back(x.size(-2));
    sizes.push_back(x.size(-1));
    return expand(x, Shape(sizes)).to_vector<double>();
  };
  const std::vector<double> va = expanded(a), vb = expanded(b);
  std::vector<double> vy =
      beta == 0 ? std::vector<double>(static_cast<size_t>(y.numel())) : y.to_vector<double>();
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t m = 0; m < M; ++m) {
      for (int64_t n = 0; n < N; ++n) {
        double sum = 0;
        for (int64_t k = 0; k < K; ++k) {
          sum += va[static_cast<size_t>((i * M + m) * K + k)] * vb[static_cast<size_t>((i * K + k) * N + n)];
        }
        double& to = vy[static_cast<size_t>((i * M + m) * N + n)];
        to = alpha * sum + (beta == 0 ? 0 : beta * to);
      }
    }
  }
  return Tensor::from<double>(y.shape(), vy);
}

void expect_product(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor y,
                    const std::string& what) {
  const Tensor expected = naive_product(alpha, a, b, beta, y);
  backend(y).matmul(alpha, a, b, beta, y);
  const double tolerance = y.dtype() == DType::f64 ? 1e-13 : 8 * epsilon(y.dtype());
  expect_close(y.to(DType::f64), expected, tolerance, tolerance, what);
}

Tensor garbage(const Shape& shape, DType dtype = DType::f64) {
  return Tensor::full(shape, std::numeric_limits<double>::quiet_NaN(), dtype);
}

// A matrix of M by N in every layout that a view can bring.
std::vector<std::pair<std::string, Tensor>> layouts(int64_t M, int64_t N, uint64_t seed, DType dtype) {
  const auto x = [&](const Shape& shape) { return random_tensor(shape, seed, 1, dtype); };
  return {
      {"dense", x({M, N})},
      {"transposed", transpose(x({N, M}), 0, 1)},
      {"columns of a wider one", slice(x({M, N + 3}), 1, 2, 2 + N)},
      {"every second row", slice(x({2 * M, N}), 0, 0, 2 * M, 2)},
      {"every second column", slice(x({M, 2 * N}), 1, 0, 2 * N, 2)},
      {"transposed, every second column", transpose(slice(x({N, 2 * M}), 1, 0, 2 * M, 2), 0, 1)},
      {"a row, expanded", expand(x({1, N}), {M, N})},
      {"a column, expanded", expand(x({M, 1}), {M, N})},
      {"a number, expanded", expand(x({1, 1}), {M, N})},
      {"overlapping rows", x({M + N}).alias({M, N}, {1, 1}, 0)},
  };
}

TEST(MatmulKernel, EveryLayoutEverySize) {
  for (const auto& [M, N, K] : std::vector<std::array<int64_t, 3>>{{3, 4, 5},
                                                                   {1, 4, 5},
                                                                   {3, 1, 5},
                                                                   {3, 4, 1},
                                                                   {1, 1, 5},
                                                                   {1, 4, 1},
                                                                   {3, 1, 1},
                                                                   {1, 1, 1},
                                                                   {0, 4, 5},
                                                                   {3, 0, 5},
                                                                   {3, 4, 0},
                                                                   {0, 0, 0},
                                                                   {70, 65, 33}}) {
    for (const auto& [a_name, a] : layouts(M, K, 1, DType::f64)) {
      for (const auto& [b_name, b] : layouts(K, N, 2, DType::f64)) {
        const std::string what = fmt::format("({}, {}) {} by ({}, {}) {}", M, K, a_name, K, N, b_name);
        expect_product(1, a, b, 0, garbage({M, N}), what);
        expect_product(-0.5, a, b, 2, random_tensor({M, N}, 3), what);
      }
    }
  }
}

TEST(MatmulKernel, Batches) {
  const Tensor y({2, 5, 3, 4}, DType::f64);
  for (const Shape& a : {Shape{3, 6}, Shape{5, 3, 6}, Shape{1, 3, 6}, Shape{2, 1, 3, 6}, Shape{2, 5, 3, 6}}) {
    for (const Shape& b : {Shape{6, 4}, Shape{5, 6, 4}, Shape{2, 1, 6, 4}, Shape{2, 5, 6, 4}}) {
      const std::string what = fmt::format("{} by {}", a, b);
      expect_product(1, random_tensor(a, 1), random_tensor(b, 2), 0, garbage(y.shape()), what);
      expect_product(1, random_tensor(a, 1), random_tensor(b, 2), 1, random_tensor(y.shape(), 3), what);
    }
  }
  // The batch inside the matrix: heads of packed projections.
  const Tensor packed = random_tensor({2, 3, 5, 6}, 4);
  expect_product(1, permute(packed, {0, 2, 1, 3}), permute(packed, {0, 2, 3, 1}), 0, garbage({2, 5, 3, 3}),
                 "heads");
  expect_product(1, random_tensor({0, 3, 6}, 1), random_tensor({6, 4}, 2), 0, garbage({0, 3, 4}), "no batch");
}

TEST(MatmulKernel, EveryDtype) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const auto& [layout, a] : layouts(5, 7, 1, dtype)) {
      const Tensor b = random_tensor({7, 3}, 2, 1, dtype);
      expect_product(1, a, b, 0, garbage({5, 3}, dtype), layout);
      expect_product(0.5, a, b, 1, random_tensor({5, 3}, 3, 1, dtype), layout);
    }
  }
}

// OpenBLAS sums small products in one go: 1500 terms would cost 5 epsilons.
TEST(MatmulKernel, ASmallProductWithALongSumKeepsItsDigits) {
  const Tensor a = random_tensor({10, 1500}, 1, 1, DType::f32),
               b = random_tensor({1500, 64}, 2, 1, DType::f32);
  Tensor y({10, 64}, DType::f32), exact({10, 64}, DType::f64);
  backend(y).matmul(1, a, b, 0, y);
  backend(exact).matmul(1, a.to(DType::f64), b.to(DType::f64), 0, exact);
  double error = 0, norm = 0;
  for (size_t i = 0; i < 640; ++i) {
    const double want = exact.to_vector<double>()[i], difference = y.to_vector<double>()[i] - want;
    error += difference * difference;
    norm += want * want;
  }
  EXPECT_LE(std::sqrt(error / norm), 3 * epsilon(DType::f32));
}

// 16-bit products are summed in f32: in bf16 itself, 256 + 1 stays 256.
TEST(MatmulKernel, HalfSumsInFloat) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Tensor y({1, 1}, dtype);
    backend(y).matmul(1, Tensor::full({1, 4096}, 1, dtype), Tensor::full({4096, 1}, 1, dtype), 0, y);
    EXPECT_EQ(y.item(), 4096);
  }
}

// Few rows and a large matrix take a path of their own, whose tiles have edges in all three dimensions.
TEST(MatmulKernel, FewRowsOfALargeMatrix) {
  const auto f32 = [](const Shape& shape, uint64_t seed) {
    return random_tensor(shape, seed, 1, DType::f32);
  };
  const auto expect = [&](const Tensor& a, const Tensor& b, double alpha, double beta,
                          const std::string& what) {
    const int64_t M = a.size(0), N = b.size(1);
    const Tensor before = f32({M, N + 5}, 3);
    Tensor exact({M, N}, DType::f64), wide = before.clone(), y = slice(wide, 1, 2, 2 + N);
    if (beta == 0) y.fill(std::numeric_limits<double>::quiet_NaN());
    if (beta != 0) backend(exact).copy(slice(before, 1, 2, 2 + N), exact);
    backend(exact).matmul(alpha, a.to(DType::f64), b.to(DType::f64), beta, exact);
    backend(y).matmul(alpha, a, b, beta, y);
    // Runs of 128 sums may each be off by 64 epsilons of their terms' magnitudes, 1/4 a term; rounding is a
    // random walk, of which six epsilons are a bound that a missing or doubled term breaks by far.
    expect_close(y.to(DType::f64), exact, 0, 6 * epsilon(DType::f32) * static_cast<double>(a.size(1)) / 4,
                 what);
    for (const auto& [begin, end] : {std::pair(int64_t{0}, int64_t{2}), std::pair(2 + N, N + 5)}) {
      expect_close(slice(wide, 1, begin, end).to(DType::f64), slice(before, 1, begin, end).to(DType::f64), 0,
                   0, what + ", beside y");
    }
  };
  for_each_instruction_set([&] {
    for (const int64_t M : {1, 7, 17, 40, 128}) {
      for (const auto& [N, K] : {std::pair(523, 257), std::pair(128, 1031)}) {
        const std::string what = fmt::format("({}, {}) by ({}, {})", M, K, K, N);
        for (const auto& [beta, alpha] : {std::pair(0., 1.), std::pair(2., -0.5)}) {
          expect(f32({M, K}, 1), transpose(f32({N, K + 3}, 2), 0, 1).alias({K, N}, {1, K + 3}, 2), alpha,
                 beta, what + " by columns");
          expect(f32({M, K}, 1), f32({K, N}, 2), alpha, beta, what + " by rows");
        }
        for (const DType dtype : {DType::f16, DType::bf16}) {
          const Tensor a = f32({M, K}, 1).to(dtype);
          expect(a, transpose(f32({N, K}, 2).to(dtype), 0, 1), 1, 0,
                 fmt::format("{} by columns in {}", what, dtype));
          expect(a, f32({K, N}, 2).to(dtype), 1, 2, fmt::format("{} by rows in {}", what, dtype));
        }
      }
    }
  });
}

// A result of 16 bits is summed in f32, one panel of columns after another, and rounded once.
TEST(MatmulKernel, FewRowsWithAResultOf16Bits) {
  const int64_t M = 9, N = 1500, K = 1100;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor a = random_tensor({M, K}, 1, 1, dtype);
    for (const Tensor& b :
         {random_tensor({K, N}, 2, 1, dtype), transpose(random_tensor({N, K}, 2, 1, dtype), 0, 1)}) {
      Tensor exact({M, N}, DType::f64), y = random_tensor({M, N}, 3, 1, dtype);
      backend(exact).copy(y, exact);
      backend(exact).matmul(0.5, a.to(DType::f64), b.to(DType::f64), 2, exact);
      backend(y).matmul(0.5, a, b, 2, y);
      expect_close(y.to(DType::f64), exact, epsilon(dtype) / 2, 1e-4, std::string(name(dtype)));
    }
  }
}

TEST(MatmulKernel, FewRowsHaveTheSameBitsForAnyNumberOfThreads) {
  const int before = omp_get_max_threads();
  for (const int64_t M : {1, 20}) {
    const Tensor a = random_tensor({M, 600}, 1, 1, DType::f32);
    for (const Tensor& b : {random_tensor({600, 701}, 2, 1, DType::f32),
                            transpose(random_tensor({701, 600}, 2, 1, DType::f32), 0, 1)}) {
      std::vector<std::vector<float>> results;
      for (const int threads : {1, 2, 5}) {
        omp_set_num_threads(threads);
        Tensor y({M, 701}, DType::f32);
        backend(y).matmul(1, a, b, 0, y);
        results.push_back(y.to_vector<float>());
      }
      omp_set_num_threads(before);
      EXPECT_EQ(results[1], results[0]);
      EXPECT_EQ(results[2], results[0]);
    }
  }
}

// Each thread has a tile of y of its own. Small whole numbers are summed exactly, so a term too many or too
// few shows.
TEST(MatmulKernel, TilesOfAnyNumberOfThreadsCoverTheProduct) {
  const auto whole = [](const Shape& shape, uint64_t seed) {
    std::vector<int64_t> values = random_indices(shape, 9, seed).to_vector<int64_t>();
    for (int64_t& v : values) v -= 4;
    return Tensor::from<int64_t>(shape, values).to(DType::f32);
  };
  const int before = omp_get_max_threads();
  for (const auto& [M, N, K] :
       std::vector<std::array<int64_t, 3>>{{130, 137, 65}, {33, 4001, 70}, {1100, 40, 66}}) {
    const Tensor a = whole({M, K}, 1), b = whole({K, N}, 2), wide = whole({M, N + 5}, 3);
    for (const bool a_by_columns : {false, true}) {
      for (const bool b_by_columns : {false, true}) {
        const Tensor pa = a_by_columns ? transpose(transpose(a, 0, 1).clone(), 0, 1) : a;
        const Tensor pb = b_by_columns ? transpose(transpose(b, 0, 1).clone(), 0, 1) : b;
        for (const int threads : {1, 2, 3, 4, 6}) {
          for (const double beta : {0., 2.}) {
            Tensor all = wide.clone(), y = slice(all, 1, 2, 2 + N);
            const Tensor expected = naive_product(-0.5, pa, pb, beta, y);
            if (beta == 0) y.fill(std::numeric_limits<double>::quiet_NaN());
            omp_set_num_threads(threads);
            backend(y).matmul(-0.5, pa, pb, beta, y);
            omp_set_num_threads(before);
            const std::string what =
                fmt::format("({}, {}) by ({}, {}), beta {}, {} threads{}{}", M, K, K, N, beta, threads,
                            a_by_columns ? ", a by columns" : "", b_by_columns ? ", b by columns" : "");
            expect_close(y.to(DType::f64), expected, 0, 0, what);
            expect_close(slice(all, 1, 0, 2), slice(wide, 1, 0, 2), 0, 0, what + ", before y");
            expect_close(slice(all, 1, 2 + N, N + 5), slice(wide, 1, 2 + N, N + 5), 0, 0, what + ", after y");
          }
        }
      }
    }
  }  // A product for each of a batch, by one matrix.
  const Tensor a = whole({3, 70, 70}, 4), b = whole({70, 240}, 5), y = whole({3, 70, 240}, 6);
  const Tensor expected = naive_product(1, a, b, 2, y);
  Tensor sum = y.clone();
  backend(sum).matmul(1, a, b, 2, sum);
  expect_close(sum.to(DType::f64), expected, 0, 0, "a batch");
}

TEST(MatmulKernel, NaNStaysInItsRowAndColumn) {
  Tensor a = random_tensor({4, 3}, 1), b = random_tensor({3, 4}, 2), y({4, 4}, DType::f64);
  a.mutable_data<double>()[3 * 2 + 1] = std::numeric_limits<double>::quiet_NaN();
  backend(y).matmul(1, a, b, 0, y);
  for (int64_t i = 0; i < 16; ++i)
    EXPECT_EQ(std::isnan(y.to_vector<double>()[static_cast<size_t>(i)]), i / 4 == 2) << i;
}

// ---- Sizes beyond 32 bits, which oneDNN takes and OpenBLAS does not

TEST(MatmulKernel, OpenBlasIsChosenForSizesThatItTakes) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  EXPECT_TRUE(suits_openblas(kMost, 1, 1, kMost, 0));
  EXPECT_FALSE(suits_openblas(kMost + 1, 1, 1, 1, 0));
  EXPECT_FALSE(suits_openblas(1, kMost + 1, 1, 1, 0));
  EXPECT_FALSE(suits_openblas(1, 1, kMost + 1, 1, 0));
  EXPECT_FALSE(suits_openblas(1, 1, 1, kMost + 1, 0));
}

// Two rows so far apart, in memory of which only their pages exist.
TEST(MatmulKernel, RowsMayBeFurtherApartThan32BitsSay) {
  constexpr int64_t kApart = (int64_t{1} << 31) + 1024, kBytes = 4 * (kApart + 1024);
  void* const memory = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const std::shared_ptr<void> owner(memory, [](void* m) { munmap(m, kBytes); });
  for (const int64_t row : {int64_t{0}, kApart})
    ASSERT_EQ(mprotect(static_cast<float*>(memory) + row, 4096, PROT_READ | PROT_WRITE), 0);
  Tensor a = Tensor::over(std::make_shared<Storage>(owner, memory, kBytes), {}, DType::f32)
                 .alias({2, 20}, {kApart, 1}, 0);
  a.copy_from(random_tensor({2, 20}, 1, 1, DType::f32));
  const Tensor b = random_tensor({20, 10}, 2, 1, DType::f32);
  expect_product(1, a, b, 0, garbage({2, 10}, DType::f32), "by rows");
  expect_product(1, transpose(b, 0, 1), transpose(a, 0, 1), 0, garbage({10, 2}, DType::f32), "by columns");
  // oneDNN leaves y as it is where there is nothing to sum, beta or not.
  expect_error<ValueError>(
      [&] {
        backend(a).matmul(1, garbage({2, 0}, DType::f32), garbage({0, 20}, DType::f32), 2, a);
      },
      "a dimension of 2147484672 is more than OpenBLAS takes");
}

}  // namespace
}  // namespace tapehead
