// Training a part of a model, from the weights of another, or with less memory.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <utility>

#include "tapehead/core/memory.h"
#include "tapehead/core/safetensors.h"
#include "tapehead/models/checkpoint.h"
#include "tapehead/models/freeze.h"
#include "tapehead/models/gpt.h"
#include "tapehead/models/trainer.h"
#include "tapehead/ops/linear_cross_entropy.h"
#include "tapehead/tests/models/training_fixture.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using PartialTrainingTest = TrainingFixture;

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

}  // namespace
}  // namespace tapehead
