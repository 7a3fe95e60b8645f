// Sparse products against the same matrix held densely.
#include <gtest/gtest.h>

#include <cmath>

#include "tapehead/backends/backend.h"
#include "tapehead/tests/golden_cases.h"
#include "tapehead/tests/ops/instruction_sets.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

// R rows of at most S entries among V columns, and the same as a dense matrix.
struct Case {
  SparseRows sparse;
  Tensor dense;

  Case(int64_t R, int64_t S, int64_t V, uint64_t seed, DType dtype) {
    Generator random{.seed = seed};
    std::vector<int64_t> count;
    std::vector<int32_t> index(static_cast<size_t>(R * S));
    std::vector<double> value(index.size()), all(static_cast<size_t>(R * V));
    for (int64_t r = 0; r < R; ++r) {
      int64_t k = 0;
      for (int64_t v = 0; v < V && k < S; ++v) {
        if (random.uniform() > 0.4) continue;
        const size_t at = static_cast<size_t>(r * S + k++);
        index[at] = static_cast<int32_t>(v);
        value[at] = 2 * random.uniform() - 1;
        all[static_cast<size_t>(r * V + v)] = value[at];
      }
      count.push_back(r == 1 ? 0 : k);  // a row of none
      if (r == 1) std::fill_n(all.begin() + V, V, 0.0);
    }
    sparse = {Tensor::from<int64_t>({R}, count), Tensor::from<int32_t>({R, S}, index),
              Tensor::from<double>({R, S}, value).to(dtype)};
    dense = Tensor::from<double>({R, V}, all).to(dtype).to(DType::f64);
  }
};

Tensor row_order(const Tensor& x, const std::vector<int64_t>& rows) {
  Tensor y(Shape{std::ssize(rows), x.size(1)}, DType::f64);
  const Tensor wide = x.to(DType::f64);
  backend(y).gather_rows(wide, Tensor::from<int64_t>({std::ssize(rows)}, rows), y);
  return y;
}

double tolerance(DType of_sums, DType table) {
  if (table == DType::bf16) return 1e-2;
  if (table == DType::f16) return 2e-3;
  return of_sums == DType::f64 && table == DType::f64 ? 1e-14 : 1e-5;
}

constexpr std::pair<DType, DType> kTypes[] = {
    {DType::f64, DType::f64}, {DType::f32, DType::f32}, {DType::f32, DType::bf16}, {DType::f32, DType::f16}};

TEST(Sparse, RowsTimesTable) {
  for_each_instruction_set([] {
    for (const auto& [sums, dtype] : kTypes) {
      for (const int64_t F : {1, 3, 16, 37, 130}) {
        const Case c(7, 11, 29, 1, sums);
        // A view into wider rows.
        const Tensor wide = random_tensor({29, F + 3}, 2, 1, dtype);
        const Tensor table = wide.alias({29, F}, {F + 3, 1}, 2);
        Tensor y(Shape{7, F}, dtype), expected(Shape{7, F}, DType::f64);
        backend(y).sparse_matmul(c.sparse, table, y);
        backend(y).matmul(1, c.dense, table.to(DType::f64), 0, expected);
        const double t = tolerance(sums, dtype);
        expect_close(y.to(DType::f64), expected, t, t, fmt::format("F {} {}", F, dtype));
      }
    }
  });
}

TEST(Sparse, TransposedAddsToTheTable) {
  for_each_instruction_set([] {
    for (const auto& [sums, dtype] : kTypes) {
      for (const int64_t F : {1, 3, 16, 37, 130}) {
        for (const double beta : {0.0, 1.0}) {
          for (const bool chosen : {false, true}) {
            const Case c(7, 11, 29, 1, sums);
            const Tensor x = random_tensor({9, F}, 2, 1, dtype);
            const std::vector<int64_t> rows = {8, 0, 3, 3, 7, 1, 2};
            const Tensor ids = chosen ? Tensor::from<int64_t>({7}, rows) : Tensor();
            Tensor used = row_order(x, chosen ? rows : std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6});
            Tensor table = random_tensor({29, F}, 3, 1, dtype), expected = table.to(DType::f64).clone();
            if (beta == 0) table.fill(std::nan(""));
            backend(table).sparse_transposed_matmul(c.sparse, x, ids, beta, table);
            backend(table).matmul(1, c.dense.alias({29, 7}, {1, 29}, 0), used, beta, expected);
            const double t = tolerance(sums, dtype);
            expect_close(table.to(DType::f64), expected, t, t, fmt::format("F {} {} {}", F, dtype, beta));
          }
        }
      }
    }
  });
}

TEST(Sparse, TransposedOfOnesSumsColumnsInDouble) {
  const Case c(7, 11, 29, 1, DType::f32);
  Tensor table = random_tensor({29, 1}, 3), expected = table.clone();
  backend(table).sparse_transposed_matmul(c.sparse, {}, {}, 1, table);
  backend(table).matmul(1, c.dense.alias({29, 7}, {1, 29}, 0), Tensor::full({7, 1}, 1, DType::f64), 1,
                        expected);
  expect_close(table, expected, 1e-15, 1e-15, "columns");
}

}  // namespace
}  // namespace tapehead
