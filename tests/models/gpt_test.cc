#include "tapehead/models/gpt.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "tapehead/core/memory.h"
#include "tapehead/core/view.h"
#include "tapehead/ops/elementwise.h"
#include "tapehead/ops/linear_cross_entropy.h"
#include "tapehead/ops/random.h"
#include "tapehead/tests/models/gpt2_golden.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const ModelConfig kTiny{.vocab_size = 7, .n_layer = 2, .n_head = 2, .n_embd = 4, .n_positions = 3};

constexpr const char* kTooManyForwards = "thousands of forwards take minutes on an emulated device";

LinearCrossEntropyArgs chunked(int64_t rows) {
  LinearCrossEntropyArgs args;
  args.options = LinearCrossEntropyOptions({.batch_chunk_size = rows});
  return args;
}

// Parameters large enough that every part of the model matters.
GPT loud_model(const ModelConfig& config, DType dtype) {
  const GPT model(config, 0, dtype);
  Generator generator{.seed = 1};
  const NoGradGuard no_grad;
  for (const auto& [name, parameter] : model.parameters()) {
    Tensor(parameter).copy_from(random_normal(parameter.shape(), 0.1, 0.5, generator, dtype));
  }
  return model;
}

// ---- Against PyTorch

TEST(GPTTest, NamesAndShapesAreHuggingFaces) {
  const SafetensorsFile golden = gpt2_golden();
  const GPT model = gpt2_model(golden);
  std::vector<std::string> names;
  for (const auto& [name, parameter] : model.parameters()) {
    names.push_back(name);
    ASSERT_TRUE(golden.contains(name)) << name;
    EXPECT_EQ(parameter.shape(), golden.tensor(name).shape()) << name;
  }
  for (const std::string& name : golden.names()) {
    if (name.starts_with("transformer.")) {
      EXPECT_THAT(names, ::testing::Contains(name));
    }
  }
}

TEST(GPTTest, LogitsAreTransformers) {
  const SafetensorsFile golden = gpt2_golden();
  const Tensor ids = golden.tensor("input_ids");
  EXPECT_LT(relative_error(gpt2_model(golden).logits(ids), golden.tensor("logits")), 1e-5);
  EXPECT_LT(relative_error(gpt2_model(golden, DType::f64).logits(ids), golden.tensor("logits_f64")), 1e-12);
}

TEST(GPTTest, LossIsTransformersWithAndWithoutChunks) {
  const SafetensorsFile golden = gpt2_golden();
  const Tensor ids = golden.tensor("input_ids"), targets = golden.tensor("targets");
  for (const LinearCrossEntropyArgs& args : {LinearCrossEntropyArgs(), chunked(1), chunked(7), chunked(64)}) {
    EXPECT_LT(relative_error(gpt2_model(golden).loss(ids, targets, args), golden.tensor("loss")), 1e-5);
    EXPECT_LT(
        relative_error(gpt2_model(golden, DType::f64).loss(ids, targets, args), golden.tensor("loss_f64")),
        1e-12);
  }
}

TEST(GPTTest, EveryGradientIsTransformers) {
  const SafetensorsFile golden = gpt2_golden();
  for (const DType dtype : {DType::f32, DType::f64}) {
    const GPT model = gpt2_model(golden, dtype);
    backward(model.loss(golden.tensor("input_ids"), golden.tensor("targets"), chunked(16)));
    for (const auto& [name, parameter] : model.parameters()) {
      EXPECT_LT(relative_error(parameter.grad(), golden.tensor("grad/" + name)), 1e-5)
          << name << " " << tapehead::name(dtype);
    }
  }
}

// Micro-batches of 3 and 1 rows, with unequal numbers of targets: each divides by the targets of both.
TEST(GPTTest, AccumulatedGradientsAreThoseOfTheFullBatch) {
  const SafetensorsFile golden = gpt2_golden();
  const GPT model = gpt2_model(golden);
  const Tensor ids = golden.tensor("input_ids"), targets = golden.tensor("targets");
  const auto rows = golden.tensor("accumulation/rows").to_vector<int64_t>();
  const auto unmasked = golden.tensor("accumulation/unmasked").to_vector<double>();
  const auto sums = golden.tensor("accumulation/loss_sum_f64").to_vector<double>();
  LinearCrossEntropyArgs args = chunked(5);
  args.normalizer = unmasked[0] + unmasked[1];
  int64_t begin = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Tensor loss =
        model.loss(slice(ids, 0, begin, begin + rows[i]), slice(targets, 0, begin, begin + rows[i]), args);
    EXPECT_NEAR(loss.item() * *args.normalizer, sums[i], 1e-5 * sums[i]);
    backward(loss);
    begin += rows[i];
  }
  for (const auto& [name, parameter] : model.parameters()) {
    EXPECT_LT(relative_error(parameter.grad(), golden.tensor("grad/" + name)), 1e-5) << name;
  }
}

// ---- By itself

TEST(GPTTest, GradientsAreDifferences) {
  if (device_is_emulated()) GTEST_SKIP() << kTooManyForwards;
  const GPT model = loud_model(kTiny, DType::f64);
  std::vector<Tensor> parameters;
  for (const auto& [name, parameter] : model.parameters()) parameters.push_back(parameter);
  const Tensor ids = Tensor::from<int64_t>({2, 3}, std::vector<int64_t>{1, 6, 1, 0, 2, 5});
  const Tensor targets = Tensor::from<int64_t>({2, 3}, std::vector<int64_t>{6, 1, -100, 2, 5, 3});
  expect_gradcheck([&](const std::vector<Tensor>&) { return model.loss(ids, targets, chunked(2)); },
                   parameters);
  expect_gradcheck([&](const std::vector<Tensor>&) { return model.logits(ids); }, parameters);
}

TEST(GPTTest, DropoutsGradientsAreDifferencesUnderTheSameNumbers) {
  if (device_is_emulated()) GTEST_SKIP() << kTooManyForwards;
  ModelConfig config = kTiny;
  config.dropout = 0.3;
  const GPT model = loud_model(config, DType::f64);
  std::vector<Tensor> parameters;
  for (const auto& [name, parameter] : model.parameters()) parameters.push_back(parameter);
  const Tensor ids = Tensor::from<int64_t>({1, 3}, std::vector<int64_t>{1, 6, 1});
  expect_gradcheck(
      [&](const std::vector<Tensor>&) {
        Generator dropout{.seed = 5};
        return model.hidden(ids, {.dropout = &dropout});
      },
      parameters);
}

TEST(GPTTest, DropoutHappensOnlyWhereAGeneratorIsGiven) {
  ModelConfig config = kTiny;
  config.dropout = 0.5;
  const GPT with = loud_model(config, DType::f32), without = loud_model(kTiny, DType::f32);
  const Tensor ids = Tensor::from<int64_t>({1, 3}, std::vector<int64_t>{1, 6, 1});
  EXPECT_EQ(with.hidden(ids).to_vector<float>(), without.hidden(ids).to_vector<float>());
  Generator dropout{.seed = 5};
  EXPECT_NE(with.hidden(ids, {.dropout = &dropout}).to_vector<float>(),
            without.hidden(ids).to_vector<float>());
  EXPECT_GT(dropout.next, 0u);
}

TEST(GPTTest, ALaterTokenNeverChangesAnEarlierLogit) {
  const GPT model =
      loud_model({.vocab_size = 11, .n_layer = 2, .n_head = 2, .n_embd = 8, .n_positions = 6}, DType::f32);
  const std::vector<int64_t> text = {3, 1, 4, 1, 5, 9};
  const auto before = model.logits(Tensor::from<int64_t>({1, 6}, text)).to_vector<float>();
  for (size_t changed = 0; changed < text.size(); ++changed) {
    std::vector<int64_t> other = text;
    other[changed] = (other[changed] + 1) % 11;
    const auto after = model.logits(Tensor::from<int64_t>({1, 6}, other)).to_vector<float>();
    for (size_t position = 0; position < text.size(); ++position) {
      const auto row = [&](const std::vector<float>& all) {
        return std::vector<float>(all.begin() + static_cast<int64_t>(position) * 11,
                                  all.begin() + static_cast<int64_t>(position + 1) * 11);
      };
      if (position < changed) {
        EXPECT_EQ(row(after), row(before)) << position << " changed by " << changed;
      } else {
        EXPECT_NE(row(after), row(before)) << position << " blind to " << changed;
      }
    }
  }
}

TEST(GPTTest, AShorterTextHasTheLogitsOfItsPlaceInALongerOne) {
  const GPT model = loud_model(kTiny, DType::f64);
  const Tensor all = model.logits(Tensor::from<int64_t>({1, 3}, std::vector<int64_t>{1, 6, 2}));
  const Tensor some = model.logits(Tensor::from<int64_t>({1, 2}, std::vector<int64_t>{1, 6}));
  EXPECT_LT(relative_error(some, slice(all, 1, 0, 2)), 1e-12);
}

// The tied weight's gradient is the embedding's plus the head's, each taken with the other cut off.
TEST(GPTTest, TheTiedHeadsGradientSumsBothUses) {
  const GPT model = loud_model(kTiny, DType::f64);
  const Tensor wte = model.parameters()[0].second;
  const Tensor ids = Tensor::from<int64_t>({2, 3}, std::vector<int64_t>{1, 6, 1, 0, 2, 5});
  const Tensor flat_targets = Tensor::from<int64_t>({6}, std::vector<int64_t>{6, 1, 4, 2, 5, 3});
  const auto gradient_of = [&](const Tensor& loss) {
    zero_grad(model.parameters());
    backward(loss);
    return wte.grad();
  };
  const Tensor both = gradient_of(model.loss(ids, reshape(flat_targets, {2, 3}), chunked(4)));
  const Tensor as_head =
      gradient_of(linear_cross_entropy(reshape(model.hidden(ids).detach(), {6, 4}), wte, flat_targets));
  const Tensor as_embedding =
      gradient_of(linear_cross_entropy(reshape(model.hidden(ids), {6, 4}), wte.detach(), flat_targets));
  EXPECT_GT(relative_error(as_head, both), 0.01);
  EXPECT_GT(relative_error(as_embedding, both), 0.01);
  EXPECT_LT(relative_error(as_head + as_embedding, both), 1e-12);
}

TEST(GPTTest, TheHeadsMemoryIsCountedUnderItsName) {
  const GPT model({.vocab_size = 1000, .n_layer = 1, .n_head = 1, .n_embd = 8, .n_positions = 64});
  const Tensor ids = Tensor::zeros({4, 64}, DType::i64);
  backward(model.loss(ids, ids, chunked(16)));
  const int64_t peak = memory_stats(default_device(), "head").peak_bytes;
  EXPECT_GE(peak, 16 * 1000 * 4);          // a chunk's logits
  EXPECT_LT(peak, 4 * 64 * 1000 * 4 / 4);  // not all of them
}

TEST(GPTTest, InitialisationIsGPT2sAndDependsOnTheSeedAlone) {
  const ModelConfig config{.vocab_size = 500, .n_layer = 2, .n_head = 2, .n_embd = 64, .n_positions = 32};
  const GPT model(config, 3), same(config, 3), other(config, 4);
  EXPECT_EQ(model.parameter_count(), 500 * 64 + 32 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64);
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const auto& [name, parameter] = model.parameters()[i];
    const auto values = parameter.to_vector<double>();
    EXPECT_EQ(values, same.parameters()[i].second.to_vector<double>()) << name;
    EXPECT_TRUE(parameter.requires_grad()) << name;
    if (parameter.dim() == 1) {
      EXPECT_THAT(values, ::testing::Each(
                              name.find("ln_") != std::string::npos && name.ends_with("weight") ? 1.0 : 0.0))
          << name;
      continue;
    }
    EXPECT_NE(values, other.parameters()[i].second.to_vector<double>()) << name;
    double square = 0;
    for (const double x : values) square += x * x;
    const double deviation = name.ends_with("c_proj.weight") ? 0.02 / 2 : 0.02;
    EXPECT_NEAR(std::sqrt(square / static_cast<double>(values.size())), deviation, 0.1 * deviation) << name;
  }
}

TEST(GPTTest, WhatDoesNotFitIsAValueErrorThatNamesTheFieldAndItsValue) {
  const auto expect = [](ModelConfig config, const char* field, const char* value) {
    EXPECT_THAT([&] { GPT{config}; }, ThrowsMessage<ValueError>(AllOf(HasSubstr(field), HasSubstr(value))));
  };
  expect({.n_head = 3, .n_embd = 256}, "n_embd is 256", "n_head 3");
  expect({.vocab_size = 0}, "vocab_size", "0");
  expect({.n_layer = -1}, "n_layer", "-1");
  expect({.n_head = 0}, "n_head", "0");
  expect({.n_positions = 0}, "n_positions", "0");
  expect({.dropout = 1}, "dropout", "1");

  const GPT model(kTiny);
  EXPECT_THAT(
      [&] {
        model.logits(Tensor::zeros({1, 4}, DType::i64));
      },
      ThrowsMessage<ValueError>(AllOf(HasSubstr("(1, 4)"), HasSubstr("n_positions, 3"))));
  EXPECT_THAT(
      [&] {
        model.logits(Tensor::full({1, 3}, 7, DType::i64))
            .to_vector<float>();  // at the latest when waited for
      },
      ThrowsMessage<ValueError>(HasSubstr("7")));
  EXPECT_THAT(
      [&] {
        model.loss(Tensor::zeros({1, 3}, DType::i64), Tensor::zeros({3, 1}, DType::i64), {});
      },
      ThrowsMessage<ValueError>(AllOf(HasSubstr("(1, 3)"), HasSubstr("(3, 1)"))));
}

}  // namespace
}  // namespace tapehead
