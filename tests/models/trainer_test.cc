#include "tapehead/models/trainer.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "tapehead/core/file.h"
#include "tapehead/core/safetensors.h"
#include "tapehead/models/checkpoint.h"
#include "tapehead/models/checkpoint_files.h"
#include "tapehead/models/gpt.h"
#include "tapehead/ops/linear_cross_entropy.h"
#include "tapehead/tests/models/training_fixture.h"

namespace tapehead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using TrainerTest = TrainingFixture;

TEST_F(TrainerTest, LearnsAndReports) {
  TrainConfig config = tiny_config();
  config.steps = 150;
  config.eval_interval = 60;
  Trainer trainer(config, training(), held_out());
  const double before = evaluate(trainer.model(), held_out()).loss;
  EXPECT_NEAR(before, std::log(11), 0.05);  // knows nothing
  std::vector<StepMetrics> steps;
  std::vector<int64_t> evaluated;
  const RunResult result =
      trainer.run({.on_step = [&](const StepMetrics& m) { steps.push_back(m); },
                   .on_evaluation = [&](const Evaluation& e) { evaluated.push_back(e.step); }});
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.step, 150);
  ASSERT_EQ(steps.size(), 150u);
  EXPECT_EQ(steps[0].step, 1);
  EXPECT_NEAR(steps[0].loss, std::log(11), 0.1);
  EXPECT_DOUBLE_EQ(steps[0].lr, 1e-2 / 3);
  EXPECT_DOUBLE_EQ(steps.back().lr, 1e-3);
  EXPECT_EQ(steps[0].tokens, 4 * 6);
  EXPECT_GT(steps[0].grad_norm, 0);
  EXPECT_EQ(steps[0].epoch, 0);
  EXPECT_GT(steps.back().epoch, 0);
  EXPECT_THAT(evaluated, ElementsAre(60, 120, 150));
  EXPECT_EQ(result.evaluation->tokens, 59);
  EXPECT_LT(result.evaluation->loss, 1.9);
}

TEST_F(TrainerTest, MicroBatchesMakeTheStepOfTheFullBatch) {
  TrainConfig config = tiny_config();
  config.model.dropout = 0;
  config.batch_size = 84;  // all windows, the last of which is shorter: unequal micro-batches
  Trainer whole(config, training());
  const Dataset data = training();
  ASSERT_EQ(Windows(data, 6).size(), 84);
  for (const int64_t rows : {1, 5, 42}) {
    config.micro_batch_size = rows;
    Trainer split(config, training());
    Trainer again(whole.config(), training());
    const StepMetrics expected = again.step(), actual = split.step();
    EXPECT_EQ(expected.tokens, 499);
    EXPECT_EQ(actual.tokens, 499);
    EXPECT_NEAR(actual.loss, expected.loss, 1e-5 * expected.loss) << rows;
    EXPECT_NEAR(actual.grad_norm, expected.grad_norm, 1e-5 * expected.grad_norm) << rows;
  }
}

TEST_F(TrainerTest, EvaluationWeighsEveryTargetOnceWhateverTheBatch) {
  const GPT model(tiny_config().model, 3);
  const Evaluation one = evaluate(model, held_out(), 1);
  EXPECT_EQ(one.tokens, 59);
  const Dataset data = held_out();
  const Batch all = Windows(data, 6).read(0, 10);  // the last one is not full
  const double mean = model.loss(all.ids, all.targets, LinearCrossEntropyArgs()).item();
  EXPECT_NEAR(one.loss, mean, 1e-6 * mean);
  for (const int64_t rows : {2, 7, 100}) {
    const Evaluation other = evaluate(model, held_out(), rows, {.batch_chunk_size = 3});
    EXPECT_EQ(other.tokens, 59);
    EXPECT_NEAR(other.loss, one.loss, 1e-6 * one.loss);
  }
  write_tokens("short.tokens", 3, 1);
  EXPECT_EQ(evaluate(model, TokenFile::open(folder_ + "/short.tokens")).tokens, 2);
}

TEST_F(TrainerTest, EvaluationTellsHowRightAndHowSureTheHeadIs) {
  const GPT model(tiny_config().model, 3);
  const Dataset data = held_out();
  const Batch all = Windows(data, 6).read(0, 10);
  const auto logits = model.logits(all.ids).to_vector<double>();
  const auto targets = all.targets.to_vector<int64_t>();
  double correct = 0, entropy = 0;
  for (size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] == kIgnoredTarget) continue;
    const auto z = std::span(logits).subspan(11 * row, 11);
    double sum = 0, dot = 0;
    for (const double value : z) sum += std::exp(value), dot += value * std::exp(value);
    entropy += (std::log(sum) - dot / sum) / 59;
    correct += (std::ranges::max_element(z) - z.begin() == targets[row]) / 59.0;
  }
  for (const int64_t rows : {1, 4}) {
    const Evaluation e = evaluate(model, held_out(), rows);
    EXPECT_NEAR(e.accuracy, correct, 1e-12);
    EXPECT_NEAR(e.entropy, entropy, 1e-5);
  }
}

TEST_F(TrainerTest, BitsPerByteCountTheWholeText) {
  EXPECT_DOUBLE_EQ(bits_per_byte({.loss = std::log(2) * 3, .tokens = 10}, 15), 2);
}

TEST_F(TrainerTest, AsksTheSystemForNoMemoryAfterTheSecondStep) {
  { const Tensor once({1000}), twice({1000}); }
  const int64_t before = device_runtime({}).system_allocations();
  { const Tensor again({1000}); }
  if (device_runtime({}).system_allocations() != before)
    GTEST_SKIP() << "freed memory is not kept: AddressSanitizer is on";
  TrainConfig config = tiny_config();
  config.head.batch_chunk_size = 5;
  config.steps = 12;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    config.dtype = dtype;
    write_tokens("full.tokens", 601, 1);  // windows of one size
    Trainer trainer(config, TokenFile::open(folder_ + "/full.tokens"));
    for (int i = 0; i < 2; ++i) trainer.step();
    const int64_t asked = device_runtime({}).system_allocations();
    for (int i = 0; i < 8; ++i) trainer.step();
    EXPECT_EQ(device_runtime({}).system_allocations(), asked) << name(dtype);
  }
}

TEST_F(TrainerTest, AFilteredHeadLearnsAndTellsWhatItLeft) {
  TrainConfig config = tiny_config();
  config.steps = 150;
  config.head.gradient_filter = "stochastic:0.05";
  Trainer trainer(config, training(), held_out());
  GradientFilterStats all;
  int64_t tokens = 0;
  const RunResult result = trainer.run({.on_step = [&](const StepMetrics& m) {
    all += m.filter;
    tokens += m.tokens;
  }});
  EXPECT_EQ(all.rows, tokens);
  EXPECT_GT(all.filtered_mass, 0);
  EXPECT_LT(result.evaluation->loss, 1.9);  // as without
}

// ---- bf16

TEST_F(TrainerTest, Bf16BeginsAsTheRoundedF32ModelAndKeepsTheRest) {
  TrainConfig config = tiny_config();
  config.dtype = DType::bf16;
  const Trainer trainer(config, training());
  trainer.save(path_);
  const SafetensorsFile file = SafetensorsFile::open(path_);
  const GPT exact(config.model, config.seed);
  for (size_t i = 0; i < exact.parameters().size(); ++i) {
    const auto& [name, value] = exact.parameters()[i];
    const Tensor parameter = trainer.model().parameters()[i].second;
    EXPECT_EQ(parameter.dtype(), DType::bf16) << name;
    EXPECT_EQ(parameter.to_vector<float>(), value.to(DType::bf16).to_vector<float>()) << name;
    EXPECT_EQ(file.tensor("optimizer.master." + name).to_vector<float>(), value.to_vector<float>()) << name;
  }
}

// Over ten seeds the two losses were at most 0.009 apart, with either ahead.
TEST_F(TrainerTest, Bf16LearnsAsMuchAsF32) {
  TrainConfig config = tiny_config();
  config.steps = 150;
  config.eval_interval = 0;
  const double f32 = Trainer(config, training(), held_out()).run().evaluation->loss;
  config.dtype = DType::bf16;
  const double bf16 = Trainer(config, training(), held_out()).run().evaluation->loss;
  EXPECT_LT(bf16, 1.9);
  EXPECT_NEAR(bf16, f32, 0.02);
}

// ---- Stopping and resuming

class ResumeTest : public TrainingFixture, public testing::WithParamInterface<DType> {};

INSTANTIATE_TEST_SUITE_P(Dtypes, ResumeTest, testing::Values(DType::f32, DType::bf16),
                         [](const auto& dtype) { return std::string(name(dtype.param)); });

TEST_P(ResumeTest, IsBitIdenticalToNeverHavingStopped) {
  TrainConfig config = tiny_config();
  config.dtype = GetParam();
  config.head.gradient_filter = "stochastic:0.3";  // draws numbers of its own
  Trainer whole(config, training(), held_out());
  std::vector<double> losses;
  const RunResult expected = whole.run({.on_step = [&](const StepMetrics& m) { losses.push_back(m.loss); }});

  // Stopped twice, within an epoch and after its end, and not where an evaluation is due.
  std::atomic<bool> stop = false;
  std::vector<double> resumed_losses;
  int64_t stop_at = 5;
  const RunCallbacks callbacks{.on_step =
                                   [&](const StepMetrics& m) {
                                     resumed_losses.push_back(m.loss);
                                     stop = m.step == stop_at;
                                   },
                               .checkpoint_path = path_,
                               .stop = &stop};
  {
    Trainer first(config, training(), held_out());
    const RunResult result = first.run(callbacks);
    EXPECT_FALSE(result.finished);
    EXPECT_EQ(result.step, 5);
  }
  stop = false;
  stop_at = 25;
  EXPECT_FALSE(Trainer::resume(path_, training(), held_out()).run(callbacks).finished);
  stop = false;
  stop_at = 0;
  Trainer last = Trainer::resume(path_, training(), held_out());
  EXPECT_EQ(last.steps_made(), 25);
  const RunResult result = last.run(callbacks);

  EXPECT_TRUE(result.finished);
  EXPECT_EQ(resumed_losses, losses);
  EXPECT_EQ(numbers(last.model().parameters()), numbers(whole.model().parameters()));
  EXPECT_EQ(result.evaluation->loss, expected.evaluation->loss);

  // The checkpoints, too: moments, master weights, step, data position, random state.
  const std::string resumed_bytes = read_file(path_);
  whole.save(path_);
  EXPECT_EQ(read_file(path_), resumed_bytes);
}

// Stopped after every step in turn, those included after which an evaluation is due.
TEST_F(TrainerTest, EveryStepIsAPlaceToStop) {
  TrainConfig config = tiny_config();
  config.peak_lr = config.min_lr = 1e-4;  // steps of one size, of which some leap by so little
  config.skip_z_score = 0.5;
  config.eval_interval = 4;
  struct Seen {
    std::vector<double> losses, smoothed, norms, evaluations;
    std::vector<bool> skipped;
    bool operator==(const Seen&) const = default;
  };
  const auto watch = [&](Seen& seen) {
    return RunCallbacks{.on_step =
                            [&](const StepMetrics& m) {
                              seen.losses.push_back(m.loss);
                              seen.smoothed.push_back(m.smoothed_loss);
                              seen.norms.push_back(m.grad_norm);
                              seen.skipped.push_back(m.skipped);
                            },
                        .on_evaluation = [&](const Evaluation& e) { seen.evaluations.push_back(e.loss); },
                        .checkpoint_path = path_};
  };
  Seen expected;
  Trainer(config, training(), held_out()).run(watch(expected));
  const std::string bytes = read_file(path_);
  EXPECT_EQ(expected.evaluations.size(), 8u);
  EXPECT_THAT(expected.skipped, ::testing::Contains(true));

  Seen seen;
  std::atomic<bool> stop;
  RunCallbacks callbacks = watch(seen);
  callbacks.on_step = [&, note = watch(seen).on_step](const StepMetrics& m) {
    note(m);
    stop = true;
  };
  callbacks.stop = &stop;
  Trainer(config, training(), held_out()).save(path_);
  for (int64_t step = 1; step <= 30; ++step) {
    stop = false;
    EXPECT_EQ(Trainer::resume(path_, training(), held_out()).run(callbacks).step, step);
  }
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(read_file(path_), bytes);
}

TEST_F(TrainerTest, KeepsTheLastAndTheBestCheckpoints) {
  TrainConfig config = tiny_config();
  config.save_interval = 10;
  config.eval_interval = 5;
  config.keep = 2;
  config.keep_best = true;
  double best = INFINITY;
  int64_t best_step = 0;
  Trainer trainer(config, training(), held_out());
  trainer.run({.on_evaluation =
                   [&](const Evaluation& e) {
                     if (e.loss < best) {
                       best = e.loss;
                       best_step = e.step;
                     }
                   },
               .checkpoint_path = path_});
  const std::vector<std::string> kept = numbered_checkpoints(path_);
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[1], numbered_checkpoint(path_, 30));
  EXPECT_EQ(read_file(kept[1]), read_file(path_));
  EXPECT_EQ(read_train_state(best_checkpoint(path_)).progress.step, best_step);
  EXPECT_EQ(evaluate(*load_model(best_checkpoint(path_)).model, held_out(), config.batch_size).loss, best);
  EXPECT_EQ(trainer.progress().best_loss, best);
}

TEST_F(TrainerTest, SavesAtIntervalsAndAtTheEnd) {
  TrainConfig config = tiny_config();
  config.save_interval = 12;
  Trainer trainer(config, training());
  std::set<int64_t> saved;
  const auto look = [&] {
    if (std::filesystem::exists(path_)) saved.insert(read_train_state(path_).progress.step);
  };
  trainer.run({.on_step = [&](const StepMetrics&) { look(); }, .checkpoint_path = path_});
  look();
  EXPECT_THAT(saved, ElementsAre(12, 24, 30));
}

TEST_F(TrainerTest, AFinishedRunMayGoOnFurther) {
  Trainer(tiny_config(), training()).run({.checkpoint_path = path_});
  Trainer more = Trainer::resume(path_, training());
  EXPECT_TRUE(more.run().finished);
  EXPECT_THAT([&] { more.set_steps(29); }, ThrowsMessage<ValueError>(HasSubstr("30 steps")));
  more.set_steps(35);
  EXPECT_EQ(more.run().step, 35);
}

TEST_F(TrainerTest, ACallbacksExceptionEndsTheRunBetweenSteps) {
  Trainer trainer(tiny_config(), training());
  EXPECT_THROW(
      trainer.run({.on_step = [](const StepMetrics& m) { check<SystemError>(m.step < 3, "full disk"); }}),
      SystemError);
  EXPECT_EQ(trainer.steps_made(), 3);
}

// ---- The head

TEST_F(TrainerTest, HeadMemoryIsCountedAgainstTheFullLogits) {
  write_tokens("train.tokens", 4000, 1);
  TrainConfig config = tiny_config();
  config.model.vocab_size = 4000;
  config.batch_size = 64;
  config.head.batch_chunk_size = 8;
  Trainer trainer(config, training());
  trainer.step();
  const HeadMemory first = trainer.head_memory();
  const int64_t N = 64 * 6, C = 4000, F = 8;
  EXPECT_EQ(first.gradient_bytes, (N + C) * F * 4);
  EXPECT_EQ(first.full_logits_bytes, 2 * N * C * 4);
  EXPECT_GE(first.peak_bytes, first.gradient_bytes + 8 * C * 4);
  EXPECT_LT(first.peak_bytes, first.full_logits_bytes / 4);
  trainer.step();
  EXPECT_EQ(trainer.head_memory().peak_bytes, first.peak_bytes);  // nothing piles up

  // A second micro-batch finds the weight's gradient there, which is not its own.
  config.micro_batch_size = 32;
  Trainer split(config, training());
  split.step();
  config.batch_size = 32;
  Trainer half(config, training());
  half.step();
  EXPECT_EQ(split.head_memory().peak_bytes, half.head_memory().peak_bytes);
}

TEST_F(TrainerTest, HeadMemoryUnderRecomputeCountsBackward) {
  write_tokens("train.tokens", 4000, 1);
  TrainConfig config = tiny_config();
  config.model.vocab_size = 4000;
  config.batch_size = 64;
  config.head.batch_chunk_size = 8;
  config.head.recompute = true;
  Trainer trainer(config, training());
  trainer.step();
  const HeadMemory memory = trainer.head_memory();
  EXPECT_GE(memory.peak_bytes, memory.gradient_bytes + 8 * 4000 * 4);
}

}  // namespace
}  // namespace tapehead
