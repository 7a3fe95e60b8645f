// What a training step takes, beside what was planned.
#include "tapehead/models/memory_planner.h"

#include <gtest/gtest.h>

#include <tuple>

#include "tapehead/core/memory.h"
#include "tapehead/tests/models/training_fixture.h"

namespace tapehead {
namespace {

using MemoryPlannerTest = TrainingFixture;

class PlannedStepTest : public TrainingFixture,
                        public testing::WithParamInterface<std::tuple<DType, int64_t, const char*>> {};

INSTANTIATE_TEST_SUITE_P(Settings, PlannedStepTest,
                         testing::Combine(testing::Values(DType::f32, DType::bf16), testing::Values(0, 2),
                                          testing::Values("", "transformer.w*,transformer.h.0.*")));

TEST_P(PlannedStepTest, IsWhatAStepTakes) {
  TrainConfig config = tiny_config();
  config.model = {
      .vocab_size = 300, .n_layer = 3, .n_head = 2, .n_embd = 32, .n_positions = 40, .dropout = 0.1};
  config.head.batch_chunk_size = 16;
  config.batch_size = 8;
  std::tie(config.dtype, config.micro_batch_size, config.freeze) = GetParam();
  const int64_t before = memory_stats(default_device()).live_bytes;
  const MemoryPlan plan = MemoryPlanner(config).plan();
  EXPECT_EQ(memory_stats(default_device()).live_bytes, before);
  reset_peak(default_device());
  Trainer trainer(config, training());
  EXPECT_EQ(memory_stats(default_device()).live_bytes - before, plan.parameters + plan.optimizer);
  EXPECT_EQ(memory_stats(default_device()).peak_bytes - before,
            plan.parameters + plan.optimizer + plan.start);

  // Gradients are there until the optimiser is done with them.
  int64_t gradients = 0;
  for (const auto& [name, p] : trainer.model().parameters()) {
    if (p.requires_grad()) gradients += p.bytes();
  }
  EXPECT_EQ(gradients, plan.gradients);
  Generator dropout;
  const Tensor ids = Tensor::zeros({config.micro_batch(), 40}, DType::i64);
  const int64_t live = memory_stats(default_device()).live_bytes;
  {
    const Tensor hidden = trainer.model().hidden(ids, {.dropout = &dropout});
    EXPECT_EQ(memory_stats(default_device()).live_bytes - live, plan.activations);
  }
  reset_peak(default_device());
  trainer.step();
  EXPECT_EQ(trainer.head_memory().peak_bytes, plan.head);
  const double peak = static_cast<double>(memory_stats(default_device()).peak_bytes - before);
  EXPECT_NEAR(static_cast<double>(plan.peak), peak, 0.15 * peak);
}

TEST_F(MemoryPlannerTest, RecomputationsPeakIsThePlannedOne) {
  TrainConfig config = tiny_config();
  config.model = {
      .vocab_size = 300, .n_layer = 6, .n_head = 2, .n_embd = 32, .n_positions = 40, .dropout = 0.1};
  config.head.batch_chunk_size = 16;
  config.batch_size = 8;
  config.recompute_activations = true;
  for (const int64_t micro_batch : {8, 2}) {
    config.micro_batch_size = micro_batch;
    const int64_t before = memory_stats(default_device()).live_bytes;
    const MemoryPlan plan = MemoryPlanner(config).plan();
    Trainer trainer(config, training());
    reset_peak(default_device());
    trainer.step();
    const double peak = static_cast<double>(memory_stats(default_device()).peak_bytes - before);
    EXPECT_NEAR(static_cast<double>(plan.peak), peak, 0.15 * peak) << micro_batch;
  }
}

TEST_F(MemoryPlannerTest, AnOutlineHasTheParametersOfItsModel) {
  for (const ModelConfig& model :
       {tiny_config().model,
        ModelConfig{.architecture = "llama",
        .vocab_size = 30,
        .n_layer = 3,
        .n_head = 4,
        .n_embd = 16,
        .n_kv_head = 2},
        ModelConfig{
            .architecture = "llama", .vocab_size = 30, .n_layer = 2, .n_embd = 16, .tied_head = false}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto made = make_model(model, 1, dtype);
      int64_t bytes = 0;
      for (const auto& [name, p] : made->parameters()) bytes += p.bytes();
      TrainConfig config;
      config.model = model;
      config.dtype = dtype;
      EXPECT_EQ(MemoryPlanner(config).plan().parameters, bytes) << model.architecture;
    }
  }
}

// Hazard: a run of 16 bits that fits as soon as it is begun, but cannot be begun.
TEST_F(MemoryPlannerTest, ARunOf16BitsTakesItsF32WeightsAtItsStart) {
  TrainConfig config = tiny_config();
  config.batch_size = 1;
  EXPECT_EQ(MemoryPlanner(config).plan().start, 0);
  config.model.n_embd = 64;  // weights that take more than six tokens' activations
  config.dtype = DType::bf16;
  const int64_t before = memory_stats(default_device()).live_bytes;
  const MemoryPlan plan = MemoryPlanner(config).plan();
  EXPECT_EQ(plan.start, 2 * plan.parameters);
  reset_peak(default_device());
  Trainer trainer(config, training());
  trainer.step();
  EXPECT_EQ(memory_stats(default_device()).peak_bytes - before, plan.peak);
}

// Hazard: a run that goes on, or begins with weights that are there, is refused for want of memory that
// drawing others would take.
TEST_F(MemoryPlannerTest, WeightsOfAFileAreReadOneByOne) {
  TrainConfig config = tiny_config();
  config.model.n_embd = 64;
  config.dtype = DType::bf16;
  Trainer(config, training()).save(path_);
  const MemoryPlan plan = MemoryPlanner(config, {.loaded = true}).plan();
  const int64_t largest = 4 * 64 * 64 * 4;  // of an MLP in f32
  EXPECT_EQ(plan.start, default_device() == Device{} ? 0 : largest);
  const auto expect_start = [&](const auto& begin) {
    const int64_t before = memory_stats(default_device()).live_bytes;
    reset_peak(default_device());
    const Trainer trainer = begin();
    EXPECT_EQ(memory_stats(default_device()).live_bytes - before, plan.parameters + plan.optimizer);
    EXPECT_EQ(memory_stats(default_device()).peak_bytes - before,
              plan.parameters + plan.optimizer + plan.start);
  };
  expect_start([&] { return Trainer(config, training(), std::nullopt, path_); });
  expect_start([&] { return Trainer::resume(path_, training()); });
}

// Hazard: a run that will not fit is told so by the machine, before its plan is there.
TEST_F(MemoryPlannerTest, AModelIsPlannedWithoutItsMemory) {
  TrainConfig config;
  config.model = {.vocab_size = 1'000'000, .n_layer = 2, .n_head = 2, .n_embd = 64, .n_positions = 100'000};
  const int64_t before = memory_stats(default_device()).live_bytes;
  reset_peak(default_device());
  EXPECT_GT(MemoryPlanner(config).plan().parameters, 1'100'000 * 64 * 4);
  EXPECT_LT(memory_stats(default_device()).peak_bytes - before, 1 << 20);
  EXPECT_EQ(memory_stats(default_device()).live_bytes, before);
}

}  // namespace
}  // namespace tapehead
