#include "tapehead/tools/product_floor.h"

#include <gtest/gtest.h>


namespace tapehead {
namespace {

TEST(ProductFloor, CountsTheProductsOfAStep) {
  const double L = 3, F = 8, C = 50, T = 6, rows = 2, N = rows * T;
  const auto model = make_model({.vocab_size = 50, .n_layer = 3, .n_head = 2, .n_embd = 8, .n_positions = 6});
  // Per block F -> 3F, F -> F, F -> 4F, 4F -> F; two T×T products of which half counts; the head.
  const double forward = L * (2 * N * 12 * F * F + 2 * N * T * F) + 2 * N * F * C;
  EXPECT_EQ(product_flops(*model, 2), 3 * forward);
}

TEST(ProductFloor, KnowsTheReferencesSize) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    EXPECT_EQ(ReferenceProduct(dtype, 16).flops(), 2.0 * 1024 * 1024 * 16);
  }
}

}  // namespace
}  // namespace tapehead
