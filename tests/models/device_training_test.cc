// Training on the device under test, beside the same steps in f64 on the host; and runs
// that move between devices.
#include <gtest/gtest.h>

#include "tapehead/core/file.h"
#include "tapehead/models/checkpoint.h"
#include "tapehead/models/generate.h"
#include "tapehead/models/head_trainer.h"
#include "tapehead/models/trainer.h"
#include "tapehead/tests/models/training_fixture.h"

namespace tapehead {
namespace {

constexpr Device kHost;
constexpr int64_t kSteps = 6;

struct Setting {
  const char* architecture;
  const char* optimizer;
  bool recompute;
};

class DeviceTrainingTest : public TrainingFixture {
 protected:
  static TrainConfig config(const Setting& setting) {
    TrainConfig c = tiny_config();
    c.model.architecture = setting.architecture;
    if (c.model.architecture == "llama") c.model.n_kv_head = 1;
    c.optimizer.name = setting.optimizer;
    c.recompute_activations = setting.recompute;
    c.document_mask = true;
    c.micro_batch_size = 3;
    c.head.batch_chunk_size = 7;
    return c;
  }

  /// The losses of the steps that begin from the f64 model of the seed, rounded.
  std::vector<double> losses(const TrainConfig& c, DType dtype) const {
    const auto exact = make_model(c.model, c.seed, DType::f64, kHost);
    const auto model = make_model(c.model, c.seed, dtype);
    const auto optimizer = make_optimizer(model->parameters(), c.optimizer);
    {
      const NoGradGuard no_grad;
      for (size_t i = 0; i < exact->parameters().size(); ++i)
        Tensor(model->parameters()[i].second).copy_from(exact->parameters()[i].second);
      for (const auto& [name, master] : optimizer->masters()) {
        for (const auto& [of, value] : exact->parameters()) {
          if (of == name) Tensor(master).copy_from(value);
        }
      }
    }
    const Dataset data = training();
    Batches batches(data, c.batch_size, c.model.n_positions, 1, {}, c.document_mask);
    StepNumbers numbers{.dropout = {.seed = 3}};
    std::vector<double> list;
    for (int64_t step = 0; step < kSteps; ++step) {
      list.push_back(add_batch_gradient(*model, batches.next(), c, numbers).loss.item());
      optimizer->step(c.peak_lr, clip_scale(gradient_norm(optimizer->parameters()), 1));
      optimizer->zero_grad();
    }
    return list;
  }

  /// Expects losses within `tolerance`, relative, of those in f64 on the host.
  void expect_losses(const TrainConfig& c, DType dtype, double tolerance) const {
    const std::vector<double> actual = losses(c, dtype);
    const DeviceGuard host(kHost);
    const std::vector<double> expected = losses(c, DType::f64);
    EXPECT_LT(expected.back(), expected.front()) << "nothing was learnt";
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(actual[i], expected[i], tolerance * expected[i]) << "step " << i + 1;
  }
};

// ---- The same steps

class DeviceStepsTest : public DeviceTrainingTest, public testing::WithParamInterface<Setting> {};

INSTANTIATE_TEST_SUITE_P(Settings, DeviceStepsTest,
                         testing::Values(Setting{"gpt2", "adamw", false}, Setting{"gpt2", "sgd", true},
                                         Setting{"llama", "muon", false}),
                         [](const auto& s) {
                           return std::string(s.param.architecture) + "_" + s.param.optimizer;
                         });

// At most 3e-8 apart, on the host and on an emulated device: a quarter of f32's epsilon.
TEST_P(DeviceStepsTest, F32LossesAreThoseOfF64) { expect_losses(config(GetParam()), DType::f32, 2e-7); }

// At most 2.6e-4 apart.
TEST_F(DeviceTrainingTest, Bf16LossesAreNearThoseOfF64) {
  expect_losses(config({"gpt2", "adamw", false}), DType::bf16, 1e-3);
}

TEST_F(DeviceTrainingTest, AHeadsLossesAreThoseOfF64) {
  const auto head_losses = [](DType dtype) {
    LabelledFeatures data;
    {
      const DeviceGuard host(kHost);
      data = {.features = random_tensor({60, 8}, 1).to(dtype), .targets = random_indices({60}, 5, 2)};
    }
    HeadTrainConfig config;
    config.bias = true;
    config.batch_size = 16;
    config.held_out = 0.2;
    HeadTrainer trainer(config, data);
    std::vector<double> list;
    for (int64_t step = 0; step < kSteps; ++step) list.push_back(trainer.step().loss);
    list.push_back(trainer.evaluate().loss);
    EXPECT_EQ(trainer.parameters()[0].second.device(), default_device());
    return list;
  };
  const std::vector<double> actual = head_losses(DType::f32);
  const DeviceGuard host(kHost);
  const std::vector<double> expected = head_losses(DType::f64);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-6 * expected[i]) << i;
}

// ---- From one device to another

TEST_F(DeviceTrainingTest, ACheckpointMovesBetweenDevicesBitForBit) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    TrainConfig c = tiny_config();
    c.dtype = dtype;
    Trainer whole(c, training());
    whole.step();
    whole.save(path_);
    const std::string bytes = read_file(path_), moved = folder_ + "/moved.safetensors";
    {
      const DeviceGuard host(kHost);
      Trainer there = Trainer::resume(path_, training());
      EXPECT_EQ(there.model().device(), kHost);
      there.save(moved);
      EXPECT_EQ(read_file(moved), bytes);
      there.step();
    }
    Trainer back = Trainer::resume(moved, training());
    EXPECT_EQ(back.model().device(), default_device());
    EXPECT_EQ(back.step().loss, whole.step().loss);
    EXPECT_EQ(numbers(back.model().parameters()), numbers(whole.model().parameters()));
  }
}

TEST_F(DeviceTrainingTest, AModelSaysAndMeasuresTheSameOnEveryDevice) {
  for (const char* architecture : {"gpt2", "llama"}) {
    Trainer trainer(config({architecture, "adamw", false}), training());
    for (int64_t i = 0; i < kSteps; ++i) trainer.step();
    trainer.save(path_);
    const auto results = [&] {
      const LoadedModel loaded = load_model(path_);
      const GenerateOptions options = {.max_tokens = 10, .sampler = {.temperature = 0}, .samples = 2};
      return std::pair(evaluate(*loaded.model, held_out(), 4, {}, /*document_mask=*/true),
                       generate(*loaded.model, std::vector<int32_t>{3, 1, 4}, options));
    };
    const auto [evaluation, text] = results();
    const DeviceGuard host(kHost);
    const auto [expected, expected_text] = results();
    EXPECT_NEAR(evaluation.loss, expected.loss, 1e-6 * expected.loss) << architecture;
    EXPECT_NEAR(evaluation.entropy, expected.entropy, 1e-6 * expected.entropy) << architecture;
    EXPECT_EQ(evaluation.accuracy, expected.accuracy) << architecture;
    EXPECT_EQ(text, expected_text) << architecture;
  }
}

}  // namespace
}  // namespace tapehead
