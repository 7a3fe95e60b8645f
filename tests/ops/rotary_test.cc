#include "tapehead/ops/rotary.h"

#include <gtest/gtest.h>

#include "tapehead/backends/backend.h"
#include "tapehead/core/view.h"
#include "tapehead/tests/golden_cases.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

const std::vector<float> kFrequencies = {1, 0.1f};

TEST(Rotary, HuggingFace) {
  for (const GoldenCase& c : golden_cases("ops.safetensors", "rotary")) {
    const auto frequencies = c.floats("frequencies");
    const int64_t first = c.integer("first");
    const RotaryTable table = rotary_table(first + 10, frequencies, DType::f64);
    expect_golden(c, rotary(c.input("x"), table, first), 1e-12, 1e-13);
  }
}

TEST(Rotary, GradientsEqualDifferences) {
  const RotaryTable table = rotary_table(9, kFrequencies, DType::f64);
  const auto turn = [&](const std::vector<Tensor>& x) { return rotary(x[0], table, 4); };
  for (const Shape& shape : {Shape{2, 3, 5, 4}, Shape{1, 1, 1, 4}, Shape{0, 2, 3, 4}, Shape{1, 2, 0, 4}})
    expect_gradcheck(turn, {random_tensor(shape, 1).set_requires_grad()});
  expect_gradcheck(
      turn, {transpose(random_tensor({2, 3, 4, 5}, 2), 2, 3).set_requires_grad()});  // not dense along D
}

TEST(Rotary, RoundsLikeItsDtype) {
  const RotaryTable table = rotary_table(5, kFrequencies, DType::f32);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Tensor x = random_tensor({2, 3, 5, 4}, 3, 1, dtype);
    expect_close(rotary(x, table), rotary(x.to(DType::f32), table).to(dtype), 0, 0, std::string(name(dtype)));
  }
}

// The contract lets a device turn x where it stands, in any layout.
TEST(Rotary, InPlace) {
  const RotaryTable table = rotary_table(5, kFrequencies, DType::f64);
  Tensor x = transpose(random_tensor({2, 5, 3, 4}, 4), 1, 2);
  const Tensor expected = rotary(x, table).clone();
  backend(x).rotary(x, table.cosine, table.sine, false, x);
  expect_close(x, expected, 0, 0, "turned");
}

TEST(Rotary, TablesAreOnTheDefaultDevice) {
  const RotaryTable table = rotary_table(5, kFrequencies, DType::f32);
  EXPECT_EQ(table.cosine.device(), test_device());
  EXPECT_EQ(table.sine.device(), test_device());
  EXPECT_EQ(rotary_table(5, kFrequencies, DType::f32, {Device::cpu}).sine.device(), Device{Device::cpu});
}

TEST(Rotary, JoiningHeadsCopiesNothing) {
  const Tensor y = rotary(random_tensor({2, 3, 5, 4}, 5), rotary_table(5, kFrequencies, DType::f64));
  EXPECT_TRUE(transpose(y, 1, 2).is_contiguous());
}

TEST(Rotary, Errors) {
  const RotaryTable table = rotary_table(5, kFrequencies, DType::f32);
  expect_error<ValueError>([&] { rotary(Tensor({2, 3, 4}), table); }, "(2, 3, 4)");
  expect_error<ValueError>([&] { rotary(Tensor({1, 1, 2, 3}), table); }, "even D");
  expect_error<ValueError>([&] { rotary(Tensor({1, 1, 2, 6}), table); }, "(positions, 3)");
  expect_error<ValueError>([&] { rotary(Tensor({1, 1, 4, 4}), table, 2); }, "at least 6 positions");
  expect_error<ValueError>([&] { rotary(Tensor({1, 1, 4, 4}), table, -1); }, "from position -1");
  expect_error<TypeError>(
      [&] {
        rotary(Tensor({1, 1, 4, 4}, DType::f64), table);
      },
      "a table of f32 for x of f64");
  expect_error<TypeError>([&] { rotary(Tensor({1, 1, 4, 4}, DType::i64), table); }, "i64");
}

}  // namespace
}  // namespace tapehead
