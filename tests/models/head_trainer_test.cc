#include "tapehead/models/head_trainer.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "tapehead/core/file.h"
#include "tapehead/core/memory.h"
#include "tapehead/core/safetensors.h"
#include "tapehead/models/checkpoint.h"
#include "tapehead/models/head_memory_planner.h"
#include "tapehead/ops/elementwise.h"
#include "tapehead/ops/random.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kRows = 3000, kFeatures = 16, kClasses = 40;

/// Clouds around a centre for each class; every tenth row does not count.
class HeadTrainerTest : public testing::Test {
 protected:
  HeadTrainerTest() {
    Generator random{.seed = 1};
    const Tensor centres = random_normal({kClasses, kFeatures}, 0, 1, random);
    features_ = random_normal({kRows, kFeatures}, 0, 0.3, random);
    std::vector<int64_t> targets;
    auto* x = features_.mutable_data<float>();
    for (int64_t row = 0; row < kRows; ++row) {
      const auto c = static_cast<int64_t>(random.below(kClasses));
      for (int64_t i = 0; i < kFeatures; ++i)
        x[row * kFeatures + i] += centres.data<float>()[c * kFeatures + i];
      targets.push_back(row % 10 ? c : -100);
    }
    targets_ = Tensor::from<int64_t>({kRows}, targets);
  }

  void write(const Tensor& features, const Tensor& targets) const {
    write_safetensors(path_, {{"features", features}, {"targets", targets}});
  }
  static HeadTrainConfig config() {
    HeadTrainConfig c;
    c.bias = true;
    c.steps = 200;
    c.batch_size = 256;
    c.peak_lr = 0.1;
    return c;
  }

  const std::string path_ = testing::TempDir() + "features.safetensors";
  Tensor features_, targets_;
};

TEST_F(HeadTrainerTest, LearnsToTellTheClassesApart) {
  write(features_, targets_);
  HeadTrainer trainer(config(), LabelledFeatures::open(path_));
  EXPECT_NEAR(trainer.evaluate().loss, std::log(kClasses), 1e-6);  // a weight of zeros
  EXPECT_NEAR(trainer.step().loss, std::log(kClasses), 1e-6);
  while (trainer.steps_made() < 200) trainer.step();
  const Evaluation e = trainer.evaluate();
  EXPECT_GT(e.tokens, 100);
  EXPECT_LT(e.tokens, 150);  // a twentieth, without those that do not count
  EXPECT_GT(e.accuracy, 0.9);
  EXPECT_LT(e.entropy, std::log(kClasses) / 2);
  EXPECT_EQ(trainer.parameters()[0].second.shape(), Shape({kClasses, kFeatures}));
  EXPECT_EQ(trainer.parameters()[1].first, "bias");
}

TEST_F(HeadTrainerTest, AStepOfAllRowsIsThatOfTheOp) {
  HeadTrainConfig all = config();
  all.batch_size = kRows;
  all.held_out = 0;
  all.optimizer = {.name = "sgd", .momentum = 0, .weight_decay = 0};
  HeadTrainer trainer(all, {features_, targets_});
  trainer.step();
  const Tensor weight = Tensor::zeros({kClasses, kFeatures}).set_requires_grad();
  backward(linear_cross_entropy(features_, weight, targets_, all.head.training_args()));
  const auto expected = (weight.grad() * (-0.1 * std::cos(M_PI / 200) / 2 - 0.05)).to_vector<float>();
  const auto actual = trainer.parameters()[0].second.to_vector<float>();
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-6);
}

TEST_F(HeadTrainerTest, TheSameSeedMakesTheSameHead) {
  const auto weights = [&](uint64_t seed) {
    HeadTrainConfig c = config();
    c.seed = seed;
    HeadTrainer trainer(c, {features_, targets_});
    for (int i = 0; i < 20; ++i) trainer.step();  // beyond an epoch
    return trainer.parameters()[0].second.to_vector<float>();
  };
  EXPECT_EQ(weights(1), weights(1));
  EXPECT_NE(weights(1), weights(2));
}

// Features are their row's number, so that the weight of a step of one row tells which it was.
TEST_F(HeadTrainerTest, AnEpochVisitsEachTrainingRowOnceAndNoneHeldOut) {
  constexpr int64_t kFew = 40;
  Tensor features = Tensor::zeros({kFew, kFew});
  for (int64_t row = 0; row < kFew; ++row) features.mutable_data<float>()[row * kFew + row] = 1;
  HeadTrainConfig one = config();
  one.batch_size = 1;
  one.classes = 2;
  one.bias = false;
  one.held_out = 0.25;
  one.schedule = "constant";
  one.optimizer = {.name = "sgd", .momentum = 0, .weight_decay = 0};
  HeadTrainer trainer(one, {features, Tensor::zeros({kFew}, DType::i64)});
  std::vector<float> before(2 * kFew);
  std::vector<int64_t> orders[2];
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    for (int i = 0; i < 30; ++i) {
      EXPECT_EQ(trainer.step().epoch, epoch) << i;
      const auto after = trainer.parameters()[0].second.to_vector<float>();
      orders[epoch].push_back(std::ranges::mismatch(after, before).in1 - after.begin());
      before = after;
    }
  }
  EXPECT_NE(orders[0], orders[1]);
  for (auto& order : orders) {
    std::ranges::sort(order);
    EXPECT_EQ(std::ranges::adjacent_find(order), order.end());
  }
  EXPECT_EQ(orders[0], orders[1]);
}

// Stopped after every step in turn, whatever draws numbers or is due there.
TEST_F(HeadTrainerTest, ResumedItIsBitIdenticalToNeverHavingStopped) {
  HeadTrainConfig c = config();
  c.steps = 30;  // three epochs
  c.batch_size = 300;
  c.eval_interval = 4;
  c.skip_z_score = 1;
  c.head.gradient_filter = "stochastic:0.01";
  const std::string whole = testing::TempDir() + "whole.safetensors",
                    stopped = testing::TempDir() + "stopped.safetensors";
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const LabelledFeatures data = {features_.to(dtype), targets_};
    std::vector<double> losses, evaluations;
    RunCallbacks callbacks = {.on_step = [&](const StepMetrics& m) { losses.push_back(m.smoothed_loss); },
                              .on_evaluation = [&](const Evaluation& e) { evaluations.push_back(e.loss); },
                              .checkpoint_path = whole};
    EXPECT_TRUE(HeadTrainer(c, data).run(callbacks).finished);
    const std::vector<double> all_losses = std::exchange(losses, {}),
                              all_evaluations = std::exchange(evaluations, {});
    EXPECT_EQ(all_evaluations.size(), 8u);

    std::atomic<bool> stop;
    callbacks.checkpoint_path = stopped;
    callbacks.stop = &stop;
    callbacks.on_step = [&](const StepMetrics& m) {
      losses.push_back(m.smoothed_loss);
      stop = true;
    };
    HeadTrainer(c, data).save(stopped);
    for (int64_t step = 1; step <= 30; ++step) {
      stop = false;
      EXPECT_EQ(HeadTrainer::resume(stopped, data).run(callbacks).step, step);
    }
    EXPECT_EQ(losses, all_losses);
    EXPECT_EQ(evaluations, all_evaluations);
    EXPECT_EQ(read_file(stopped), read_file(whole)) << name(dtype);
  }
}

TEST_F(HeadTrainerTest, EveryFieldOfItsStateIsKept) {
  HeadTrainConfig every;
  every.classes = 2;
  every.bias = true;
  every.held_out = 0.75;
  every.steps = 3;
  every.batch_size = 4;
  every.schedule = "wsd";
  every.peak_lr = 0.5;
  every.min_lr = 0.25;
  every.warmup_steps = 5;
  every.decay_steps = 6;
  every.optimizer = {.name = "sgd", .momentum = 0.125, .nesterov = false};
  every.clip_norm = 7;
  every.skip_z_score = 8;
  every.eval_interval = 9;
  every.save_interval = 10;
  every.keep = 11;
  every.keep_best = true;
  every.head = {.batch_chunk_size = 12, .label_smoothing = 0.1};
  every.seed = ~uint64_t{0};
  const HeadTrainState state = {
      .config = every,
      .progress = {.step = 13,
                   .loss = {.mean_sum = 1.5, .square_sum = 2.5, .count = 3},
                   .guard = {.loss = {.mean_sum = 3.5, .square_sum = 4.5, .count = 5},
                             .norm = {.mean_sum = 5.5, .square_sum = 6.5, .count = 7},
                             .in_a_row = 2},
                   .evaluated_step = 14,
                   .best_step = 15,
                   .best_loss = 0.1},
      .optimizer_steps = 16,
      .epoch = 17,
      .next_row = 18,
      .filter = {.seed = ~uint64_t{1}, .next = 19},
      .data = {.rows = 20, .features = 21, .dtype = DType::bf16, .targets = "22"}};
  const HeadTrainState back = parse_head_state(to_json(state));
  EXPECT_EQ(back.config, state.config);
  EXPECT_EQ(back.progress, state.progress);
  EXPECT_EQ(back.optimizer_steps, state.optimizer_steps);
  EXPECT_EQ(back.epoch, state.epoch);
  EXPECT_EQ(back.next_row, state.next_row);
  EXPECT_EQ(back.filter.seed, state.filter.seed);
  EXPECT_EQ(back.filter.next, state.filter.next);
  EXPECT_EQ(back.data, state.data);

  // The keys by which older folders are read.
  const auto json = nlohmann::json::parse(to_json(state));
  EXPECT_EQ(json["training"], nlohmann::json::parse(R"({
      "classes": 2, "bias": true, "held_out": 0.75, "steps": 3, "batch_size": 4, "schedule": "wsd",
      "peak_lr": 0.5, "min_lr": 0.25, "warmup_steps": 5, "decay_steps": 6, "optimizer": "sgd", "beta1": 0.9,
      "beta2": 0.95, "epsilon": 1e-8, "momentum": 0.125, "nesterov": false, "weight_decay": 0.1,
      "clip_norm": 7, "skip_z_score": 8, "eval_interval": 9, "save_interval": 10, "keep": 11,
      "keep_best": true, "seed": 18446744073709551615})"));
}

// They are `tapehead train-head`'s, and differ from those of `train`.
TEST_F(HeadTrainerTest, ItsDefaultsStay) {
  const HeadTrainConfig c;
  EXPECT_EQ(c.steps, 1000);
  EXPECT_EQ(c.batch_size, 4096);
  EXPECT_EQ(c.peak_lr, 1e-2);
  EXPECT_EQ(c.min_lr, 0);
  EXPECT_EQ(c.warmup_steps, 0);
  EXPECT_EQ(c.optimizer.weight_decay, 0);
  EXPECT_EQ(c.clip_norm, 0);
  EXPECT_EQ(c.eval_interval, 0);
}

TEST_F(HeadTrainerTest, OtherFeaturesDoNotResumeIt) {
  HeadTrainer(config(), {features_, targets_}).save(path_);
  const auto expect = [&](const Tensor& features, const Tensor& targets, const char* part) {
    EXPECT_THAT(
        [&] {
          HeadTrainer::resume(path_, {features, targets});
        },
        ThrowsMessage<ValueError>(AllOf(HasSubstr(path_), HasSubstr(part))));
  };
  expect(features_.to(DType::f64), targets_, "16 features in f32, and there are 3000 of 16 in f64");
  Tensor others = targets_.clone();
  others.mutable_data<int64_t>()[1] = 0;
  expect(features_, others, "with other targets");
  EXPECT_THAT([&] { read_train_state(path_); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr(path_), HasSubstr("a checkpoint of a head alone"))));
}

// The file may be larger than memory.
TEST_F(HeadTrainerTest, FeaturesStayInTheirFile) {
  write(features_, targets_);
  features_ = {};
  const int64_t before = memory_stats({}).live_bytes;
  reset_peak({});
  HeadTrainConfig small = config();
  small.batch_size = 64;
  HeadTrainer trainer(small, LabelledFeatures::open(path_));
  trainer.step();
  trainer.evaluate();
  EXPECT_LT(memory_stats({}).peak_bytes - before, kRows * kFeatures * 4 / 2);
}

TEST_F(HeadTrainerTest, AStepTakesTheMemoryThatWasPlanned) {
  const Tensor all_count = random_indices({kRows}, kClasses, 3);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const char* optimizer : {"adamw", "sgd"}) {
      for (const bool ignores : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} {}", dtype, optimizer, ignores));
        const LabelledFeatures data = {features_.to(dtype), ignores ? targets_ : all_count};
        HeadTrainConfig c = config();
        c.bias = optimizer[0] == 'a';
        c.optimizer.name = optimizer;
        c.optimizer.momentum = 0;
        c.head.batch_chunk_size = 32;
        c = with_classes(c, data);
        const MemoryPlan plan = HeadMemoryPlanner(data).plan(c);
        const int64_t before = memory_stats({}).live_bytes;
        HeadTrainer trainer(c, data);
        EXPECT_EQ(memory_stats({}).live_bytes - before, plan.parameters + plan.optimizer);
        reset_peak({});
        reset_peak({}, "head");
        trainer.step();
        const int64_t head = memory_stats({}, "head").peak_bytes, peak = memory_stats({}).peak_bytes - before;
        if (ignores) {  // by so many rows less
          EXPECT_LT(head, plan.head);
          EXPECT_GT(static_cast<double>(head), 0.9 * static_cast<double>(plan.head));
        } else {
          EXPECT_EQ(head, plan.head);
          EXPECT_EQ(peak, plan.peak);
        }
        EXPECT_LE(peak, plan.peak);
      }
    }
  }
}

// Hazard: so many classes are refused by the machine, or end the process, before the plan says so.
TEST_F(HeadTrainerTest, AHeadIsPlannedWithoutItsMemory) {
  HeadTrainConfig c = config();
  c.classes = kMostHeadClasses;
  const int64_t before = memory_stats({}).live_bytes;
  reset_peak({});
  const MemoryPlan plan = HeadMemoryPlanner({features_, targets_}).plan(c);
  EXPECT_EQ(plan.parameters, kMostHeadClasses * (kFeatures + 1) * 4);
  EXPECT_GT(plan.peak, 4 * plan.parameters);
  EXPECT_LT(memory_stats({}).peak_bytes - before, 1 << 10);
}

TEST_F(HeadTrainerTest, BadFilesAreNamedWithWhatIsWrong) {
  const auto expect = [&](const Tensor& features, const Tensor& targets, const char* part) {
    write(features, targets);
    EXPECT_THAT([&] { LabelledFeatures::open(path_); },
                ThrowsMessage<ValueError>(AllOf(HasSubstr(path_), HasSubstr(part))));
  };
  const Tensor ids = Tensor::zeros({4}, DType::i64);
  expect(Tensor::zeros({5, 2}), ids, "5 rows of features but 4 targets");
  expect(Tensor::zeros({4}), ids, "features");
  expect(Tensor::zeros({4, 0}), ids, "one feature at least");
  expect(Tensor::zeros({4, 2}), Tensor::zeros({4}), "must be integers");
  write_safetensors(path_, {{"features", Tensor::zeros({4, 2})}});
  EXPECT_THAT([&] { LabelledFeatures::open(path_); },
              ThrowsMessage<ValueError>(HasSubstr("no tensor \"targets\"")));
}

// Hazard: a damaged file's target becomes the number of classes, and memory for so many is asked for first.
TEST_F(HeadTrainerTest, ATargetThatIsNoClassIsRefusedBeforeAnythingIsAllocated) {
  constexpr int64_t kBeyond[] = {(int64_t{1} << 31) - 1, int64_t{1} << 62,
                                 std::numeric_limits<int64_t>::max(), -1};
  for (const int64_t target : kBeyond) {
    targets_.mutable_data<int64_t>()[7] = target;
    const int64_t before = memory_stats({}).live_bytes;
    reset_peak({});
    EXPECT_THAT(
        [&] {
          HeadTrainer(config(), {features_, targets_});
        },
        ThrowsMessage<ValueError>(
            HasSubstr(fmt::format("the target of row 7 is {}: it must be in [0, 2147483647)", target))));
    EXPECT_EQ(memory_stats({}).peak_bytes, before);
  }
}

TEST_F(HeadTrainerTest, MistakesAreSaid) {
  const auto expect = [&](auto&& change, const char* part) {
    HeadTrainConfig c = config();
    change(c);
    EXPECT_THAT([&] { HeadTrainer(c, {features_, targets_}); }, ThrowsMessage<ValueError>(HasSubstr(part)));
  };
  expect([](HeadTrainConfig& c) { c.classes = 3; }, "it must be in [0, 3)");
  expect([](HeadTrainConfig& c) { c.classes = int64_t{1} << 31; }, "at most 2147483647");
  expect([](HeadTrainConfig& c) { c.batch_size = 5000; }, "a batch of 5000 rows");
  expect([](HeadTrainConfig& c) { c.held_out = 1; }, "held_out is 1");
  expect([](HeadTrainConfig& c) { c.schedule = "up"; }, "name is up");
  expect([](HeadTrainConfig& c) { c.clip_norm = -1; }, "clip_norm is -1");
  expect([](HeadTrainConfig& c) { c.optimizer.name = "muon"; }, "a head is none: take adamw or sgd");
  Tensor one = Tensor::full({kRows}, -100, DType::i64);
  // Hazard: with the number of classes given, a run trained on nothing at a loss of 0.
  for (const int64_t classes : {0, 40}) {
    HeadTrainConfig c = config();
    c.classes = classes;
    EXPECT_THAT(
        [&] {
          HeadTrainer(c, {features_, one});
        },
        ThrowsMessage<ValueError>(HasSubstr("none of the " + std::to_string(kRows) + " targets counts")));
  }
  one.mutable_data<int64_t>()[0] = 1;
  EXPECT_THAT(
      [&] {
        HeadTrainer(config(), {features_, one});
      },
      ThrowsMessage<ValueError>(HasSubstr("none of the 150 rows held out")));
  features_.fill(NAN);
  HeadTrainer trainer(config(), {features_, targets_});
  EXPECT_THAT([&] { trainer.step(); }, ThrowsMessage<RuntimeError>(HasSubstr("step 1 diverged")));
  EXPECT_EQ(trainer.steps_made(), 0);
}

}  // namespace
}  // namespace tapehead
