#include "tapehead/models/head_trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tapehead/core/memory.h"
#include "tapehead/core/safetensors.h"
#include "tapehead/ops/elementwise.h"
#include "tapehead/ops/random.h"

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
  static HeadTrainConfig config() { return {.bias = true, .steps = 200, .batch_size = 256, .peak_lr = 0.1}; }

  const std::string path_ = testing::TempDir() + "features.safetensors";
  Tensor features_, targets_;
};

TEST_F(HeadTrainerTest, LearnsToTellTheClassesApart) {
  write(features_, targets_);
  HeadTrainer trainer(config(), LabelledFeatures::open(path_));
  EXPECT_NEAR(trainer.evaluate().loss, std::log(kClasses), 1e-6);  // a weight of zeros
  EXPECT_NEAR(trainer.step(), std::log(kClasses), 1e-6);
  while (trainer.steps_made() < 200) trainer.step();
  const HeadEvaluation e = trainer.evaluate();
  EXPECT_GT(e.rows, 100);
  EXPECT_LT(e.rows, 150);  // a twentieth, without those that do not count
  EXPECT_GT(e.correct_rows, e.rows * 9 / 10);
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

TEST_F(HeadTrainerTest, BadFilesAreNamedWithWhatIsWrong) {
  const auto expect = [&](const Tensor& features, const Tensor& targets, const char* part) {
    write(features, targets);
    EXPECT_THAT([&] { LabelledFeatures::open(path_); },
                ThrowsMessage<ValueError>(AllOf(HasSubstr(path_), HasSubstr(part))));
  };
  const Tensor ids = Tensor::zeros({4}, DType::i64);
  expect(Tensor::zeros({5, 2}), ids, "5 rows of features but 4 targets");
  expect(Tensor::zeros({4}), ids, "features");
  expect(Tensor::zeros({4, 2}), Tensor::zeros({4}), "must be integers");
  write_safetensors(path_, {{"features", Tensor::zeros({4, 2})}});
  EXPECT_THAT([&] { LabelledFeatures::open(path_); },
              ThrowsMessage<ValueError>(HasSubstr("no tensor \"targets\"")));
}

TEST_F(HeadTrainerTest, MistakesAreSaid) {
  const auto expect = [&](auto&& change, const char* part) {
    HeadTrainConfig c = config();
    change(c);
    EXPECT_THAT([&] { HeadTrainer(c, {features_, targets_}); }, ThrowsMessage<ValueError>(HasSubstr(part)));
  };
  expect([](HeadTrainConfig& c) { c.classes = 3; }, "it must be in [0, 3)");
  expect([](HeadTrainConfig& c) { c.batch_size = 5000; }, "a batch of 5000 rows");
  expect([](HeadTrainConfig& c) { c.held_out = 1; }, "held_out is 1");
  expect([](HeadTrainConfig& c) { c.schedule = "up"; }, "name is up");
  features_.fill(NAN);
  HeadTrainer trainer(config(), {features_, targets_});
  EXPECT_THAT([&] { trainer.step(); }, ThrowsMessage<RuntimeError>(HasSubstr("step 1 diverged")));
  EXPECT_EQ(trainer.steps_made(), 0);
}

}  // namespace
}  // namespace tapehead
