// Training with a recorded step, on an emulated device.
#include "tapehead/models/captured_step.h"

#include <gmock/gmock-matchers.h>

#include <set>

#include "tapehead/core/file.h"
#include "tapehead/models/memory_planner.h"
#include "tapehead/tests/models/training_fixture.h"

namespace tapehead {
namespace {

constexpr Device kCuda{Device::cuda};

class CapturedStepTest : public TrainingFixture {
 protected:
  /// Expects the same numbers of each step, and the same checkpoint, from two trainers, of which one records;
  /// gives how many targets the steps had.
  std::set<int64_t> expect_same_steps(const TrainConfig& config, const std::string& tokens) {
    const DeviceGuard guard(kCuda);
    const auto data = [&] { return TokenFile::open(folder_ + "/" + tokens); };
    Trainer plain(config, data()), recorded(config, data());
    recorded.capture_steps();
    std::set<int64_t> targets;
    for (int64_t i = 0; i < 6; ++i) {
      const StepMetrics expected = plain.step(), actual = recorded.step();
      targets.insert(actual.tokens);
      EXPECT_EQ(actual.loss, expected.loss) << i;
      EXPECT_EQ(actual.grad_norm, expected.grad_norm) << i;
      EXPECT_EQ(actual.lr, expected.lr) << i;
      EXPECT_EQ(actual.skipped, expected.skipped) << i;
      if (i == 2) {  // memory comes and goes between steps
        EXPECT_EQ(evaluate(recorded.model(), held_out(), 2).loss,
                  evaluate(plain.model(), held_out(), 2).loss);
      }
    }
    EXPECT_EQ(recorded.head_memory().peak_bytes, plain.head_memory().peak_bytes);
    plain.save(path_);
    const std::string bytes = read_file(path_);
    recorded.save(path_);
    EXPECT_TRUE(read_file(path_) == bytes) << "the checkpoints differ";
    return targets;
  }
};

TEST_F(CapturedStepTest, SixStepsHaveTheBitsOfSixThatWereNotRecorded) {
  TrainConfig config = tiny_config();
  EXPECT_EQ(expect_same_steps(config, "train.tokens").size(), 1u);
  config.dtype = DType::bf16;
  config.micro_batch_size = 3;
  config.recompute_activations = config.document_mask = true;
  config.optimizer.name = "sgd";
  expect_same_steps(config, "train.tokens");
}

// Nine windows, of which the last has one target.
TEST_F(CapturedStepTest, StepsWithOtherNumbersOfTargetsAreComputedWithout) {
  write_tokens("few.tokens", 50, 1);
  EXPECT_GT(expect_same_steps(tiny_config(), "few.tokens").size(), 1u);
}

// Hazard: a recording of the short batch that a run began with fits no later one.
TEST_F(CapturedStepTest, ABatchThatIsNotFullIsNotRecorded) {
  const DeviceGuard guard(kCuda);
  write_tokens("few.tokens", 50, 1);
  TrainConfig config = tiny_config();
  const auto begun = [&] { return Trainer(config, TokenFile::open(folder_ + "/few.tokens")); };
  const int64_t full = config.batch_size * config.model.n_positions;
  while (begun().step().tokens == full) ++config.seed;
  Trainer trainer = begun();
  trainer.capture_steps();
  trainer.step();
  EXPECT_FALSE(trainer.has_recorded());
  ASSERT_EQ(trainer.step().tokens, full);
  EXPECT_TRUE(trainer.has_recorded());
}

// Hazard: a run that was planned without its recording, and ends without memory at its first step.
TEST_F(CapturedStepTest, ThePlanSaysWhatItKeeps) {
  if (!device_is_emulated())
    GTEST_SKIP() << "a real device counts memory in pages of 2 MiB, too coarse for this step";
  const DeviceGuard guard(kCuda);
  TrainConfig config = tiny_config();
  config.model = {.vocab_size = 300, .n_layer = 3, .n_head = 2, .n_embd = 32, .n_positions = 40};
  config.head.batch_chunk_size = 16;
  config.batch_size = 4;
  const auto expect_plan = [&](int64_t micro_batch, bool recompute) {
    config.micro_batch_size = micro_batch;
    config.recompute_activations = recompute;
    const MemoryPlan plan = MemoryPlanner(config, {.recorded = true}).plan();
    Trainer trainer(config, training());
    EXPECT_EQ(trainer.recorded_bytes(), 0);
    trainer.capture_steps();
    trainer.step();
    const auto kept = static_cast<double>(trainer.recorded_bytes());
    EXPECT_NEAR(static_cast<double>(plan.recording), kept, 0.15 * kept)
        << micro_batch << (recompute ? " recomputed" : "");
    EXPECT_EQ(plan.peak, plan.parameters + plan.optimizer + plan.recording);
  };
  for (const int64_t micro_batch : {4, 2}) {
    for (const bool recompute : {false, true}) expect_plan(micro_batch, recompute);
  }
}

TEST_F(CapturedStepTest, AStepThatDivergesChangesNothing) {
  const DeviceGuard guard(kCuda);
  Trainer trainer(tiny_config(), training());
  trainer.capture_steps();
  trainer.step();
  Tensor weight = trainer.model().parameters()[0].second;
  const NoGradGuard no_grad;
  const Tensor kept = weight.clone();
  weight.fill(INFINITY);
  expect_error<RuntimeError>([&] { trainer.step(); }, "[train] step 2 diverged");
  EXPECT_EQ(trainer.steps_made(), 1);
  for (const float value : weight.to_vector<float>()) EXPECT_EQ(value, INFINITY);
  weight.copy_from(kept);
  EXPECT_EQ(trainer.step().step, 2);
}

TEST_F(CapturedStepTest, WhatCannotBeRecordedSaysWhy) {
  const auto expect_refusal = [&](const TrainConfig& config, Device device, const std::string& part) {
    const DeviceGuard guard(device);
    Trainer trainer(config, training());
    expect_error<ValueError>([&] { trainer.capture_steps(); }, part);
  };
  TrainConfig config = tiny_config();
  expect_refusal(config, Device{}, "[capture] the cpu records no steps");
  config.head.gradient_filter = "threshold:0.01";
  expect_refusal(config, kCuda, "[capture] gradient_filter is threshold:0.01");
  config = tiny_config();
  config.optimizer.name = "muon";
  expect_refusal(config, kCuda, "[capture] the optimizer is muon");
}

}  // namespace
}  // namespace tapehead
