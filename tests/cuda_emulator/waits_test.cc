// How often the host waits for the device.
#include <gtest/gtest.h>

#include <cmath>

#include "tapehead/backends/memory_cache.h"
#include "tapehead/models/language_model.h"
#include "tapehead/models/optimizer.h"
#include "tapehead/ops/embedding.h"
#include "tapehead/ops/linear_cross_entropy.h"
#include "tapehead/tests/cuda_emulator/emulator.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

constexpr Device kCuda{Device::cuda};

// Waits that work() makes once memory is there: the first call may ask CUDA for some.
int64_t waits_of(const std::function<void()>& work) {
  work();
  const int64_t before = cuda_emulator::waits();
  work();
  return cuda_emulator::waits() - before;
}

TEST(Waits, AreCounted) {
  const DeviceGuard guard(kCuda);
  const Tensor x = Tensor::full({5}, 1);
  EXPECT_EQ(waits_of([&] { Tensor(x).fill(2); }), 0);
  EXPECT_EQ(waits_of([&] {
              Tensor(x).fill(2);
              x.to_vector<float>();
              x.to_vector<float>();  // there is no more to wait for, but for the copy
            }),
            2);
}

// Under AddressSanitizer memory is given back at once, for which CUDA waits.
#define SKIP_UNLESS_MEMORY_IS_KEPT() \
  if (!MemoryCache::kKeeps) GTEST_SKIP() << "no memory is kept"

TEST(Waits, LinearCrossEntropyHasNone) {
  SKIP_UNLESS_MEMORY_IS_KEPT();
  const DeviceGuard guard(kCuda);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    Tensor input = random_tensor({24, 8}, 1, 1, dtype).set_requires_grad(),
           weight = random_tensor({50, 8}, 2, 1, dtype).set_requires_grad(),
           bias = random_tensor({50}, 3, 1, dtype).set_requires_grad();
    Tensor target = random_indices({24}, 50, 4);
    Tensor(target.alias({5}, {1}, 3)).fill(-100);
    const Tensor class_weight = random_tensor({50}, 5, 1, dtype),
                 token_weight = random_tensor({24}, 6, 1, dtype);
    for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
      for (const bool chunked : {false, true}) {
        LinearCrossEntropyArgs args;
        args.reduction = reduction;
        args.bias = bias;
        args.class_weight = class_weight;
        args.token_weight = token_weight;
        args.label_smoothing = 0.1;
        args.z_loss = 0.01;
        if (chunked) args.options = LinearCrossEntropyOptions({.batch_chunk_size = 8});
        const Tensor upstream = Tensor::full(reduction == Reduction::none ? Shape{24} : Shape(), 1, dtype);
        EXPECT_EQ(waits_of([&] { backward(linear_cross_entropy(input, weight, target, args), upstream); }), 0)
            << name(dtype) << " " << name(reduction) << " " << chunked;
      }
    }
  }
}

TEST(Waits, TrainingStepHasOneForItsNumbers) {
  SKIP_UNLESS_MEMORY_IS_KEPT();
  const DeviceGuard guard(kCuda);
  const auto model = make_model(
      {.vocab_size = 50, .n_layer = 2, .n_head = 2, .n_embd = 16, .n_positions = 8, .dropout = 0.1}, 1,
      DType::f32, kCuda);
  const auto optimizer = make_optimizer(model->parameters(), {});
  const Tensor ids = random_indices({2, 8}, 50, 1), targets = random_indices({2, 8}, 50, 2);
  const Tensor first_seen = Tensor::zeros({2, 8}, DType::i64);
  Generator dropout{.seed = 3};
  LinearCrossEntropyArgs head;
  head.options = LinearCrossEntropyOptions({.batch_chunk_size = 8});
  const auto loss_and_gradients = [&] {
    const Tensor loss = model->loss(ids, targets, head, {.dropout = &dropout, .first_seen = first_seen});
    backward(loss);
    return loss.to(DType::f64);
  };
  EXPECT_EQ(waits_of([&] {
              const Tensor loss = loss_and_gradients();
              const LossAndNorm numbers = read_loss_and_norm(loss, optimizer->parameters());
              EXPECT_TRUE(std::isfinite(numbers.loss) && std::isfinite(numbers.gradient_norm));
              optimizer->step(0.01, clip_scale(numbers.gradient_norm, 1));
              optimizer->zero_grad();
            }),
            1);
}

// Hazard: an index that is in no range, looked at by nobody, reads memory of others.
TEST(Waits, IndexFaultIsToldByTheNextOne) {
  const DeviceGuard guard(kCuda);
  const Tensor table = random_tensor({5, 3}, 1);
  const auto ids = [](std::vector<int64_t> values) { return Tensor::from<int64_t>({2}, values); };
  const Tensor bad = embedding(table, ids({1, 7}));
  const Tensor worse = embedding(table, ids({9, 1}));
  expect_error<ValueError>([&] { worse.to_vector<double>(); }, "[embedding] index 7 at position 1");
  EXPECT_NO_THROW(worse.to_vector<double>()) << "it is told once";
  const std::vector<double> rows = bad.to_vector<double>(), first = table.to_vector<double>();
  EXPECT_EQ(std::vector(rows.begin() + 3, rows.end()), std::vector(first.begin(), first.begin() + 3))
      << "row 0 stands in its place";
  LinearCrossEntropyArgs one;
  one.options = LinearCrossEntropyOptions();
  one.counted_rows = 1;
  expect_error<ValueError>(
      [&] {
        linear_cross_entropy(random_tensor({2, 3}, 1), table, ids({0, 1}), one).item();
      },
      "more rows count than counted_rows 1");
  expect_error<ValueError>(
      [&] {
        linear_cross_entropy(random_tensor({2, 3}, 1), table, ids({0, -3}), {});
        device_runtime(kCuda).synchronize();
      },
      "[linear_cross_entropy] target -3 in row 1");
}

}  // namespace
}  // namespace tapehead
