// Training a part of a model or with less memory, and what a step takes as it was planned.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <tuple>

#include "tapehead/core/memory.h"
#include "tapehead/core/safetensors.h"
#include "tapehead/models/checkpoint.h"
#include "tapehead/models/freeze.h"
#include "tapehead/models/gpt.h"
#include "tapehead/models/memory_plan.h"
#include "tapehead/models/trainer.h"
#include "tapehead/ops/linear_cross_entropy.h"
#include "tapehead/tests/models/training_fixture.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using PartialTrainingTest = TrainingFixture;

// ---- A part of the model, and weights from elsewhere

TEST_F(PartialTrainingTest, FrozenParametersStayAndCostNothing) {
  TrainConfig config = tiny_config();
  config.freeze = "transformer.wte.weight,transformer.wpe.weight,transformer.h.0.*";
  Trainer trainer(config, training());
  const auto before = numbers(trainer.model().parameters());
  trainer.step();
  const auto after = numbers(trainer.model().parameters());
  for (size_t i = 0; i < before.size(); ++i) {
    const std::string& name = before[i].first;
    const bool frozen = name.find("h.1.") == name.npos && name.find("ln_f") == name.npos;
    EXPECT_EQ(after[i].second == before[i].second, frozen) << name;
  }
  trainer.save(path_);
  const SafetensorsFile file = SafetensorsFile::open(path_);
  for (const std::string& name : file.names())
    EXPECT_FALSE(name.starts_with("optimizer.first.transformer.h.0")) << name;
  Trainer resumed = Trainer::resume(path_, training());
  resumed.step();
  trainer.step();
  EXPECT_EQ(numbers(resumed.model().parameters()), numbers(trainer.model().parameters()));
}

// All that is below the first trained parameter runs as if there were no gradients.
TEST_F(PartialTrainingTest, AFrozenBodyLeavesNothingOnTheTape) {
  const GPT model(tiny_config().model, 1);
  freeze(model.parameters(), "transformer.w*,transformer.h.*");
  const Tensor ids = Tensor::zeros({4, 6}, DType::i64);
  const int64_t before = memory_stats(default_device()).live_bytes;
  const Tensor hidden = model.hidden(ids);
  EXPECT_TRUE(hidden.requires_grad());
  const int64_t N = 4 * 6, F = 8;
  // The last norm's input and output, and its two statistics of each row.
  EXPECT_EQ(memory_stats(default_device()).live_bytes - before, (2 * N * F + 2 * N) * 4);
  freeze(model.parameters(), "transformer.ln_f.weight");
  backward(model.hidden(ids), Tensor::full({4, 6, 8}, 1));
  EXPECT_TRUE(model.parameters().back().second.grad().defined());  // ln_f.bias alone
  for (const auto& [name, p] : model.parameters())
    EXPECT_EQ(p.grad().defined(), name.ends_with("ln_f.bias")) << name;
}

TEST_F(PartialTrainingTest, AFrozenBodyUnderAHeadOfItsOwnRunsWithoutATape) {
  ModelConfig config = tiny_config().model;
  config.architecture = "llama";
  config.tied_head = false;
  config.n_embd = 16;
  const auto model = make_model(config, 1);
  freeze(model->parameters(), "model.*");
  const int64_t before = memory_stats(default_device()).live_bytes;
  const Tensor hidden = model->hidden(Tensor::zeros({4, 6}, DType::i64));
  EXPECT_FALSE(hidden.requires_grad());
  EXPECT_EQ(memory_stats(default_device()).live_bytes - before, hidden.bytes());
  TrainConfig training_config = tiny_config();
  training_config.model = config;
  training_config.freeze = "model.*";
  Trainer trainer(training_config, training());
  const double first = trainer.step().loss;
  for (int i = 0; i < 20; ++i) trainer.step();
  EXPECT_LT(trainer.step().loss, first);
}

TEST_F(PartialTrainingTest, RecomputedActivationsMakeTheSameStepsInLessMemory) {
  TrainConfig config = tiny_config();
  config.model.n_layer = 6;
  config.batch_size = 40;
  const auto run = [&](bool recompute) {
    config.recompute_activations = recompute;
    Trainer trainer(config, training());
    trainer.step();
    const int64_t before = memory_stats(default_device()).live_bytes;
    reset_peak(default_device());
    trainer.step();
    return std::pair(numbers(trainer.model().parameters()),
                     memory_stats(default_device()).peak_bytes - before);
  };
  const auto kept = run(false), recomputed = run(true);
  EXPECT_EQ(recomputed.first, kept.first);
  EXPECT_LT(recomputed.second, kept.second / 2);
}

TEST_F(PartialTrainingTest, BeginsFromTheWeightsOfAnotherRunWithAFreshOptimizer) {
  Trainer first(tiny_config(), training());
  first.step();
  first.save(path_);
  Trainer second(tiny_config(), training(), std::nullopt, path_);
  EXPECT_EQ(numbers(second.model().parameters()), numbers(first.model().parameters()));
  EXPECT_EQ(second.steps_made(), 0);
  second.save(path_);
  const SafetensorsFile file = SafetensorsFile::open(path_);
  for (const float x : file.tensor("optimizer.second.transformer.wte.weight").to_vector<float>())
    EXPECT_EQ(x, 0);

  // From 16 bits their masters are taken, to 16 bits nothing is lost.
  TrainConfig half = tiny_config();
  half.dtype = DType::bf16;
  Trainer(half, training(), std::nullopt, path_).save(folder_ + "/half.safetensors");
  const Trainer back(tiny_config(), training(), std::nullopt, folder_ + "/half.safetensors");
  EXPECT_EQ(numbers(back.model().parameters()), numbers(first.model().parameters()));

  TrainConfig wider = tiny_config();
  wider.model.n_embd = 12;
  EXPECT_THAT(
      [&] { Trainer(wider, training(), std::nullopt, path_); },
      ThrowsMessage<ValueError>(AllOf(HasSubstr(path_), HasSubstr("(11, 8)"), HasSubstr("(11, 12)"))));
}

// ---- Memory

class MemoryPlanTest : public TrainingFixture,
                       public testing::WithParamInterface<std::tuple<DType, int64_t, const char*>> {};

INSTANTIATE_TEST_SUITE_P(Settings, MemoryPlanTest,
                         testing::Combine(testing::Values(DType::f32, DType::bf16), testing::Values(0, 2),
                                          testing::Values("", "transformer.w*,transformer.h.0.*")));

TEST_P(MemoryPlanTest, IsWhatAStepTakes) {
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

TEST_F(PartialTrainingTest, RecomputationsPeakIsThePlannedOne) {
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

TEST_F(PartialTrainingTest, AnOutlineHasTheParametersOfItsModel) {
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
TEST_F(PartialTrainingTest, ARunOf16BitsTakesItsF32WeightsAtItsStart) {
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

// Hazard: a run that will not fit is told so by the machine, before its plan is there.
TEST_F(PartialTrainingTest, AModelIsPlannedWithoutItsMemory) {
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
