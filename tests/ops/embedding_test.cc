#include "tapehead/ops/embedding.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <limits>

#include "tapehead/backends/backend.h"
#include "tapehead/core/memory.h"
#include "tapehead/core/view.h"
#include "tapehead/ops/elementwise.h"
#include "tapehead/ops/reduce.h"
#include "tapehead/tests/golden_cases.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

Tensor leaf(const Shape& shape, uint64_t seed) { return random_tensor(shape, seed).set_requires_grad(); }

TEST(Embedding, PyTorch) {
  for (const GoldenCase& c : golden_cases("ops.safetensors", "embedding")) {
    expect_golden(c, embedding(c.input("weight"), c.input("indices")), 1e-14, 0);
  }
}

TEST(Embedding, GradientsEqualDifferences) {
  const auto check_ids = [](Tensor weight, const Tensor& ids) {
    expect_gradcheck([ids](const std::vector<Tensor>& x) { return embedding(x[0], ids); },
                     {std::move(weight)});
  };
  const Tensor ids = random_indices({3, 4}, 5, 1);
  for (const DType index : {DType::i64, DType::i32}) {
    check_ids(leaf({5, 3}, 2), ids.to(index));
    check_ids(leaf({5, 3}, 2), transpose(ids, 0, 1).to(index));
    check_ids(leaf({5, 3}, 2), slice(ids, 1, 0, 4, 2).to(index));
  }
  check_ids(leaf({5, 3}, 2), transpose(ids, 0, 1));
  check_ids(leaf({5, 3}, 2), slice(ids, 1, 0, 4, 2));
  check_ids(leaf({5, 1}, 2), ids);
  check_ids(leaf({1, 3}, 2), Tensor::zeros({4}, DType::i64));
  check_ids(leaf({5, 3}, 2), Tensor::full({}, 4, DType::i64));
  check_ids(leaf({5, 3}, 2), Tensor({0, 2}, DType::i64));
  check_ids(leaf({5, 0}, 2), ids);
  check_ids(leaf({0, 3}, 2), Tensor({0}, DType::i64));
  // Rows any distance apart, and not dense within.
  check_ids(slice(random_tensor({5, 7}, 3), 1, 2, 5).set_requires_grad(), ids);
  check_ids(transpose(random_tensor({3, 5}, 3), 0, 1).set_requires_grad(), ids);
  check_ids(expand(random_tensor({1, 3}, 3), {5, 3}).clone().set_requires_grad(), ids);
}

TEST(Embedding, StridedUpstreamGradient) {
  Tensor weight = leaf({5, 3}, 1), same = weight.clone().set_requires_grad();
  const Tensor ids = random_indices({2, 4}, 5, 2), gradient = random_tensor({3, 4, 2}, 3);
  backward(embedding(weight, ids), transpose(gradient, 0, 2));
  backward(embedding(same, ids), transpose(gradient, 0, 2).clone());
  expect_close(weight.grad(), same.grad(), 0, 0, "strided");
}

TEST(Embedding, SameForAnyNumberOfThreads) {
  const int before = omp_get_max_threads();
  std::vector<std::vector<float>> results;
  const Tensor ids = random_indices({4000}, 7, 1), gradient = random_tensor({4000, 50}, 2, 1, DType::f32);
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    Tensor weight = Tensor::zeros({7, 50}).set_requires_grad();
    backward(embedding(weight, ids), gradient);
    results.push_back(weight.grad().to_vector<float>());
  }
  omp_set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

// In bf16 itself 256 + 1 stays 256.
TEST(Embedding, RepeatedIdsInHalfPrecisionRoundOnce) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Tensor weight = Tensor::zeros({3, 2}, dtype).set_requires_grad();
    const Tensor y = embedding(weight, Tensor::full({4096}, 1, DType::i64));
    backward(y, Tensor::full(y.shape(), 1, dtype));
    EXPECT_EQ(weight.grad().to_vector<float>(), std::vector<float>({0, 0, 4096, 4096, 0, 0}));
  }
}

// A tied table's other gradient comes first; the embedding's is added to it where the ids say.
TEST(Embedding, JoinsASumThatIsThereAlready) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    Tensor weight = random_tensor({6, 5}, 1, 1, dtype).set_requires_grad();
    const Tensor ids = Tensor::from<int64_t>({4}, {3, 0, 3, 5}), other = random_tensor({6, 5}, 2, 1, dtype),
                 gradient = random_tensor({4, 5}, 3, 1, dtype);
    const Tensor rows = embedding(weight, ids), all = mul(weight, other);  // `all` is the newer one
    const Tensor joined = sum(mul(rows, gradient)) + sum(all);
    const int64_t before = memory_stats(test_device()).live_bytes;
    reset_peak(test_device());
    backward(joined);
    const int64_t tables = (memory_stats(test_device()).peak_bytes - before) / (30 * size_of(dtype));
    EXPECT_LT(tables, 3) << "a dense gradient of the embedding was made";
    const Tensor together = weight.grad();
    weight.set_grad({});
    backward(sum(mul(embedding(weight, ids), gradient)));
    Tensor expected = weight.grad().to(DType::f64);
    backend(expected).accumulate(other, 1, expected);
    // In bf16 both were rounded, at magnitudes below 2.
    expect_close(together.to(DType::f64), expected, 1e-6, dtype == DType::bf16 ? 0x1p-7 : 1e-7, "joined");
  }
}

// Hazard: a sum that somebody else holds, as a hook may, must not be written.
TEST(Embedding, LeavesASumAloneThatIsHeld) {
  Tensor weight = leaf({6, 5}, 1);
  const Tensor ids = Tensor::from<int64_t>({4}, {3, 0, 3, 5});
  const Tensor view = reshape(weight, {6, 5});
  const Tensor rows = embedding(view, ids);
  const Tensor held = random_tensor({6, 5}, 9);
  const std::vector<double> before = held.to_vector<double>();
  backward(sum(rows) + sum(record("give", view.detach().clone(), {view}, {},
                                  [held](const Upstream&) { return Gradients{held}; })));
  EXPECT_EQ(held.to_vector<double>(), before);
  EXPECT_NEAR(weight.grad().to_vector<double>()[15], before[15] + 2, 1e-15);
}

// The ids may be used again for the next batch while this one waits for its backward: the tape notices.
TEST(Embedding, IdsChangedBeforeBackward) {
  Tensor weight = leaf({5, 3}, 1), ids = Tensor::zeros({4}, DType::i64);
  const Tensor y = embedding(weight, ids);
  ids.fill(1);
  expect_error<RuntimeError>([&] { backward(y, Tensor::zeros(y.shape(), DType::f64)); }, "[embedding]");
}

TEST(Embedding, Errors) {
  const Tensor weight({5, 3});
  const auto ids = [](std::vector<int64_t> values) {
    return Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values);
  };
  // At the latest when the host waits for the device.
  const auto refuse = [&](const Tensor& wrong, const std::string& part) {
    expect_error<ValueError>([&] { embedding(weight, wrong).to_vector<float>(); }, part);
  };
  refuse(ids({0, 4, 5, -1}), "index 5 at position 2 is out of range for a table of 5");
  refuse(ids({0, -1}), "index -1 at position 1");
  refuse(ids({std::numeric_limits<int64_t>::min()}), "index -9223372036854775808");
  refuse(ids({7}).to(DType::i32), "index 7 at position 0");
  expect_error<ValueError>([&] { embedding(Tensor({0, 3}), ids({0})); }, "table of 0 rows");
  expect_error<ValueError>([&] { embedding(Tensor({5}), ids({0})); }, "(5,)");
  expect_error<TypeError>([&] { embedding(weight, Tensor::zeros({2})); }, "f32");
  expect_error<TypeError>([&] { embedding(ids({1}), ids({0})); }, "i64");
}

}  // namespace
}  // namespace tapehead
