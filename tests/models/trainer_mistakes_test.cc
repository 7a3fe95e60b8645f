// What a trainer says of mistakes, and what it leaves when a step fails.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tapehead/models/checkpoint.h"
#include "tapehead/tests/models/training_fixture.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using TrainerMistakesTest = TrainingFixture;

TEST_F(TrainerMistakesTest, MistakesAreValueErrorsThatNameTheFieldAndItsValue) {
  const auto expect = [&](auto&& change, const char* text) {
    TrainConfig config = tiny_config();
    change(config);
    EXPECT_THAT([&] { Trainer(config, training(), held_out()); }, ThrowsMessage<ValueError>(HasSubstr(text)));
  };
  expect([](TrainConfig& c) { c.dtype = DType::f16; }, "dtype is f16");
  expect([](TrainConfig& c) { c.dtype = DType::f64; }, "dtype is f64");
  expect([](TrainConfig& c) { c.steps = 0; }, "steps is 0");
  expect([](TrainConfig& c) { c.batch_size = 0; }, "batch_size is 0");
  expect([](TrainConfig& c) { c.batch_size = 85; }, "batch of 85");
  expect([](TrainConfig& c) { c.micro_batch_size = -1; }, "micro_batch_size is -1");
  expect([](TrainConfig& c) { c.peak_lr = NAN; }, "peak_lr is nan");
  expect([](TrainConfig& c) { c.min_lr = 1; }, "min_lr is 1");
  expect([](TrainConfig& c) { c.optimizer.beta2 = 1; }, "beta2 is 1");
  expect([](TrainConfig& c) { c.optimizer.name = "adam"; }, "name is adam");
  expect([](TrainConfig& c) { c.schedule = "step"; }, "name is step");
  expect([](TrainConfig& c) { c.decay_steps = -1; }, "decay_steps is -1");
  expect([](TrainConfig& c) { c.skip_z_score = -1; }, "skip_z_score is -1");
  expect([](TrainConfig& c) { c.keep = -1; }, "keep is -1");
  expect([](TrainConfig& c) { c.clip_norm = -1; }, "clip_norm is -1");
  expect([](TrainConfig& c) { c.model.n_head = 3; }, "n_head 3");
  expect([](TrainConfig& c) { c.model.vocab_size = 10; }, "vocabulary of 11");
  expect([](TrainConfig& c) { c.model.n_positions = 500; }, "context of 500");
}

TEST_F(TrainerMistakesTest, OtherTokensDoNotResumeARun) {
  Trainer(tiny_config(), training()).save(path_);
  write_tokens("train.tokens", 400, 1);
  EXPECT_THAT([&] { Trainer::resume(path_, training()); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr(path_), HasSubstr("500"), HasSubstr("400"))));
}

// Of the same size, and of the same number of tokens.
TEST_F(TrainerMistakesTest, TokensOfAnotherTokenizerAreToldFromTheRunsOwn) {
  const std::string own = "0123456789abcdef", other = "fedcba9876543210";
  const auto tokens = [&](const std::string& hash) {
    std::vector<int32_t> cycle;
    for (int32_t i = 0; i < 500; ++i) cycle.push_back(i % 11);
    return TokenFile::temporary(cycle, 11, hash);
  };
  Trainer(tiny_config(), tokens(own)).save(path_);
  EXPECT_EQ(read_train_state(path_).tokenizer_hash, own);
  EXPECT_NO_THROW(Trainer::resume(path_, tokens(own)));
  EXPECT_NO_THROW(Trainer::resume(path_, tokens("")));  // that do not tell
  const auto told = [&](const char* advice) {
    return ThrowsMessage<ValueError>(
        AllOf(HasSubstr(path_), HasSubstr(own), HasSubstr(other), HasSubstr(advice)));
  };
  EXPECT_THAT([&] { Trainer::resume(path_, tokens(other)); }, told("resume with the same tokens"));
  EXPECT_THAT([&] { Trainer(tiny_config(), tokens(other), std::nullopt, path_); },
              told("the tokenizer that the weights were trained with"));
  EXPECT_THAT([&] { Trainer(tiny_config(), tokens(own), tokens(other)); },
              ThrowsMessage<ValueError>(HasSubstr("those held out do not match")));
}

// Views of results that an operation had not written yet, and that held an earlier NaN, were once blamed.
TEST_F(TrainerMistakesTest, ANaNInTheLossIsTracedToItsOperation) {
  TrainConfig config = tiny_config();
  config.micro_batch_size = 2;
  Trainer trainer(config, training());
  Tensor norm_bias = trainer.model().parameters().back().second;
  const auto spoil = [&](const StepMetrics& m) {
    const NoGradGuard no_grad;
    if (m.step == 3) norm_bias.fill(std::numeric_limits<double>::quiet_NaN());
  };
  EXPECT_THAT([&] { trainer.run({.on_step = spoil}); },
              ThrowsMessage<RuntimeError>(AllOf(HasSubstr("step 4"), HasSubstr("loss is nan"),
                                                HasSubstr("[layer_norm] forward made a NaN"))));
  EXPECT_EQ(trainer.steps_made(), 3);
  for (const auto& [name, parameter] : trainer.model().parameters())
    EXPECT_FALSE(parameter.grad().defined()) << name;
}

TEST_F(TrainerMistakesTest, DivergenceIsSaidAndLeavesTheModelAsItWas) {
  Trainer trainer(tiny_config(), training());
  Tensor wte = trainer.model().parameters()[0].second;
  {
    const NoGradGuard no_grad;
    wte.fill(std::numeric_limits<double>::infinity());
  }
  const auto before = numbers(trainer.model().parameters());
  EXPECT_THAT([&] { trainer.step(); }, ThrowsMessage<RuntimeError>(HasSubstr("diverged")));
  EXPECT_EQ(trainer.steps_made(), 0);
  EXPECT_EQ(numbers(trainer.model().parameters()), before);
  for (const auto& [name, parameter] : trainer.model().parameters())
    EXPECT_FALSE(parameter.grad().defined()) << name;
}

// A step that failed between its micro-batches once left the first one's gradients to the next step.
TEST_F(TrainerMistakesTest, AStepThatFailsHalfwayLeavesNoGradient) {
  TrainConfig config = tiny_config();
  config.micro_batch_size = 1;
  Trainer trainer(config, training());
  int backwards = 0;
  Tensor wte = trainer.model().parameters()[0].second;
  wte.register_hook([&](const Tensor&) -> Tensor {
    if (++backwards == 2) throw std::runtime_error("halfway");
    return {};
  });
  EXPECT_THAT([&] { trainer.step(); }, ThrowsMessage<std::runtime_error>(HasSubstr("halfway")));
  for (const auto& [name, parameter] : trainer.model().parameters())
    EXPECT_FALSE(parameter.grad().defined()) << name;
}

}  // namespace
}  // namespace tapehead
