// Steps recorded on the device: the bits of steps that were not, the memory that they keep, and what cannot
// be recorded.
#include "tapehead/core/capture.h"

#include <gtest/gtest.h>

#include "tapehead/models/language_model.h"
#include "tapehead/models/optimizer.h"
#include "tapehead/ops/dropout.h"
#include "tapehead/ops/elementwise.h"
#include "tapehead/ops/embedding.h"
#include "tapehead/ops/linear_cross_entropy.h"
#include "tapehead/ops/random.h"
#include "tapehead/tests/cuda_emulator/emulator.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

constexpr Device kCuda{Device::cuda};
constexpr int64_t kSteps = 6;

class CaptureTest : public testing::Test {
  const DeviceGuard guard_{kCuda};
};

std::vector<double> values(const Tensor& x) { return x.to_vector<double>(); }

std::vector<std::vector<double>> values(const ParameterList& list) {
  std::vector<std::vector<double>> all;
  for (const auto& [name, tensor] : list) all.push_back(values(tensor));
  return all;
}

// ---- Whole steps

// A model and all that its steps read, on the device.
struct Training {
  std::unique_ptr<LanguageModel> model;
  std::unique_ptr<Optimizer> optimizer;
  Tensor ids = Tensor::zeros({2, 8}, DType::i64), targets = ids.clone(), loss;
  Generator dropout{.seed = 3};

  explicit Training(DType dtype, const std::string& name)
      : model(make_model(
            {.vocab_size = 50, .n_layer = 2, .n_head = 2, .n_embd = 16, .n_positions = 8, .dropout = 0.1}, 1,
            dtype)),
        optimizer(make_optimizer(model->parameters(), {.name = name})) {}

  void read_batch(int64_t step) {
    ids.copy_from(random_indices({2, 8}, 50, static_cast<uint64_t>(2 * step)));
    targets.copy_from(random_indices({2, 8}, 50, static_cast<uint64_t>(2 * step + 1)));
  }
  // Forward and backward.
  void gradient() {
    LinearCrossEntropyArgs head;
    head.options = LinearCrossEntropyOptions({.batch_chunk_size = 8});
    loss = model->loss(ids, targets, head, {.dropout = &dropout});
    backward(loss);
  }
  static double learning_rate(int64_t step) { return 0.01 * static_cast<double>(kSteps - step); }
};

TEST_F(CaptureTest, SixWholeStepsHaveTheBitsOfSixThatWereNotRecorded) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const char* name : {"adamw", "sgd"}) {
      Training plain(dtype, name), recorded(dtype, name);
      StepOnDevice step = Tensor::zeros({3}, DType::f64);
      Capture capture(kCuda,
                      [&] {
                        recorded.gradient();
                        recorded.optimizer->apply(step);
                        recorded.optimizer->zero_grad();
                      },
                      {&recorded.dropout});
      EXPECT_EQ(recorded.dropout.next, 0u);
      double first = 0;
      for (int64_t i = 0; i < kSteps; ++i) {
        plain.read_batch(i);
        plain.gradient();
        plain.optimizer->step(Training::learning_rate(i), 0.5);
        plain.optimizer->zero_grad();
        recorded.read_batch(i);
        recorded.optimizer->count_step(Training::learning_rate(i), 0.5, step);
        const int64_t launches = cuda_emulator::launches();
        capture.replay();
        EXPECT_EQ(cuda_emulator::launches() - launches, 2) << "where random numbers begin, and the graph";
        EXPECT_EQ(values(recorded.loss), values(plain.loss)) << name << " step " << i;
        EXPECT_EQ(recorded.dropout.next, plain.dropout.next);
        if (i == 0) first = values(plain.loss)[0];
      }
      EXPECT_NE(values(plain.loss)[0], first);
      EXPECT_EQ(values(recorded.optimizer->state()), values(plain.optimizer->state())) << name;
      EXPECT_EQ(values(recorded.model->parameters()), values(plain.model->parameters())) << name;
      EXPECT_EQ(recorded.optimizer->steps(), kSteps);
    }
  }
}

// ---- Random numbers and the host's

TEST_F(CaptureTest, RandomNumbersGoOn) {
  Generator plain{.seed = 1, .next = 5}, recorded = plain, other{.seed = 2}, recorded_other = other;
  const auto draw = [](Generator& a, Generator& b) {
    const Tensor x = random_normal({7}, 2, 1, a);
    return x + random_normal({7}, 0, 1, b) + dropout(x, 0.5, a);
  };
  Tensor y;
  Capture capture(kCuda, [&] { y = draw(recorded, recorded_other); }, {&recorded, &recorded_other});
  for (int i = 0; i < 3; ++i) {
    if (i == 2) recorded.next = plain.next = 1000;  // as after a resume
    capture.replay();
    EXPECT_EQ(values(y), values(draw(plain, other))) << i;
    EXPECT_EQ(recorded.next, plain.next);
  }
  recorded.seed = 9;
  expect_error<RuntimeError>([&] { capture.replay(); }, "a generator of seed 1 has seed 9 now");
}

// Hazard: bytes of a vector that is gone when they are copied again.
TEST_F(CaptureTest, TheHostsNumbersAreThoseOfTheRecording) {
  std::vector<double> many(600, 2);
  Tensor y;
  Capture capture(kCuda, [&] { y = Tensor::from<double>({600}, many) + 1; });
  many.assign(600, 7);
  capture.replay();
  EXPECT_EQ(values(y), std::vector<double>(600, 3));
  expect_error<RuntimeError>(
      [] { Capture(kCuda, [] { Tensor::from<double>({20000}, std::vector<double>(20000)); }); },
      "brings 160000 bytes from the host");
}

// ---- Memory

// Hazard: what a replay writes belongs to a tensor that was made since.
TEST_F(CaptureTest, ItsMemoryIsNobodyElses) {
  Tensor x = Tensor::full({100}, 1, DType::f32), old = Tensor::full({100}, 5, DType::f32), y;
  Capture capture(kCuda, [&] {
    const Tensor a = x * 2, b = a + old;
    y = b * a;
    old = Tensor();  // read above: others must not get it
  });
  std::vector<Tensor> others;
  for (int i = 0; i < 20; ++i) others.push_back(Tensor::full({100}, 9, DType::f32));
  for (const float expected : {14.0f, 36.0f}) {
    capture.replay();
    EXPECT_EQ(y.to_vector<float>(), std::vector<float>(100, expected));
    x.fill(2);
  }
  for (const Tensor& other : others) EXPECT_EQ(other.to_vector<float>(), std::vector<float>(100, 9));
}

TEST_F(CaptureTest, ItsMemoryComesBack) {
  const Tensor x = Tensor::full({10'000}, 1, DType::f32);
  const auto record = [&] {
    Tensor y;
    Capture capture(kCuda, [&] { y = x * 2 + x; });
    capture.replay();
    return y;
  };
  EXPECT_EQ(record().to_vector<float>()[0], 3) << "a tensor outlives its recording";
  const size_t once = cuda_emulator::memory_in_use();
  for (int i = 0; i < 5; ++i) record();
  EXPECT_EQ(cuda_emulator::memory_in_use(), once);
}

// ---- What goes wrong

TEST_F(CaptureTest, IndexFaultsOfReplaysAreTold) {
  const Tensor table = Tensor::full({5, 3}, 1, DType::f32);
  Tensor ids = Tensor::zeros({2}, DType::i64), rows;
  {
    Capture capture(kCuda, [&] { rows = embedding(table, ids); });
    for (const int64_t wrong : {7, 8}) {
      ids.fill(0);
      capture.replay();
      EXPECT_NO_THROW(rows.to_vector<float>());
      ids.fill(static_cast<double>(wrong));
      capture.replay();
      expect_error<ValueError>([&] { rows.to_vector<float>(); },
                               fmt::format("[embedding] index {} at position 0", wrong));
    }
    capture.replay();
  }
  expect_error<ValueError>([&] { rows.to_vector<float>(); }, "[embedding] index 8");
  EXPECT_NO_THROW(rows.to_vector<float>());
}

TEST_F(CaptureTest, WhatCannotBeRecordedSaysWhy) {
  const Tensor x = Tensor::full({3}, 2, DType::f32);
  const auto expect_refusal = [&](const std::function<void()>& work, const std::string& part) {
    Generator numbers{.seed = 1};
    expect_error<RuntimeError>(
        [&] {
          Capture(kCuda,
                  [&] {
                    random_normal({3}, 0, 1, numbers);
                    work();
                  },
                  {&numbers});
        },
        part);
    EXPECT_EQ(numbers.next, 0u) << "the generator stands where it stood";
    EXPECT_EQ((x * 3).to_vector<float>(), std::vector<float>(3, 6)) << "the device can be used";
  };
  expect_refusal([&] { x.to_vector<float>(); }, "[capture] recorded work waits for the device");
  expect_refusal([&] { device_runtime(kCuda).synchronize(); },
                 "[capture] recorded work waits for the device");
  expect_refusal([&] { device_runtime(kCuda).all_finite(x); },
                 "[capture] recorded work waits for the device");
  expect_refusal([&] { Capture(kCuda, [] {}); }, "[capture] recorded work does not record");
  Generator unnamed{.seed = 8};
  expect_refusal([&] { random_normal({3}, 0, 1, unnamed); }, "a generator of seed 8 that was not named");

  const auto head = [](DType dtype, const std::string& filter) {
    Tensor input = random_tensor({8, 4}, 1, 1, dtype).set_requires_grad(),
           weight = random_tensor({30, 4}, 2, 1, dtype).set_requires_grad(),
           target = random_indices({8}, 30, 3);
    return [=] {
      LinearCrossEntropyArgs args;
      args.options = LinearCrossEntropyOptions({.batch_chunk_size = 4, .gradient_filter = filter});
      linear_cross_entropy(input, weight, target, args);
    };
  };
  expect_refusal(head(DType::f16, "none"), "gradients in f16 are scaled by the largest factor of a row");
  expect_refusal(head(DType::f32, "threshold:0.01"), "a gradient_filter counts what it leaves");

  Tensor matrix = random_tensor({4, 3}, 1, 1, DType::f32).set_requires_grad();
  matrix.set_grad(random_tensor({4, 3}, 2, 1, DType::f32));
  const auto muon = make_optimizer({{"layers.0.weight", matrix}}, {.name = "muon"});
  expect_refusal([&] { muon->apply(Tensor::zeros({3}, DType::f64)); },
                 "[muon] a matrix's step is divided by a norm");

  Generator a{.seed = 4}, b{.seed = 4};
  expect_error<ValueError>([&] { Capture(kCuda, [] {}, {&a, &b}); }, "two generators of seed 4");
  expect_error<ValueError>([] { Capture(Device{}, [] {}); }, "[capture] the cpu records nothing");
}

}  // namespace
}  // namespace tapehead
