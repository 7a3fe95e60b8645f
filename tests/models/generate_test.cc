#include "tapehead/models/generate.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "tapehead/core/memory.h"
#include "tapehead/core/view.h"
#include "tapehead/models/gpt.h"
#include "tapehead/models/key_value_cache.h"
#include "tapehead/ops/random.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

class GenerateTest : public testing::Test {
 protected:
  explicit GenerateTest(DType dtype = DType::f32)
      : model_({.vocab_size = 13, .n_layer = 2, .n_head = 2, .n_embd = 8, .n_positions = 5}, 0, dtype) {
    Generator generator{.seed = 1};
    const NoGradGuard no_grad;
    for (const auto& [name, parameter] : model_.parameters()) {
      Tensor(parameter).copy_from(random_normal(parameter.shape(), 0, 0.7, generator));
    }
  }

  // The first sample alone.
  std::vector<int32_t> generated(const std::vector<int32_t>& prompt, const GenerateOptions& options) const {
    return generate(model_, prompt, options).at(0);
  }

  std::vector<float> logits_after(const std::vector<int32_t>& text) const {
    const std::vector<int64_t> ids(text.begin(), text.end());
    const auto logits = model_.logits(Tensor::from<int64_t>({1, std::ssize(ids)}, ids)).to_vector<float>();
    return {logits.end() - 13, logits.end()};
  }

  // The tokens by falling logit after `text`.
  std::vector<int32_t> ranking(const std::vector<int32_t>& text) const {
    const std::vector<float> logits = logits_after(text);
    std::vector<int32_t> order(13);
    std::iota(order.begin(), order.end(), 0);
    const auto logit = [&](int32_t token) { return logits[static_cast<size_t>(token)]; };
    std::ranges::stable_sort(order, std::greater(), logit);
    return order;
  }

  const GPT model_;
  const std::vector<int32_t> prompt_ = {3, 1, 4};
};

class GenerateDtypeTest : public GenerateTest, public testing::WithParamInterface<DType> {
 protected:
  GenerateDtypeTest() : GenerateTest(GetParam()) {}
};

INSTANTIATE_TEST_SUITE_P(Dtypes, GenerateDtypeTest, testing::Values(DType::f32, DType::bf16),
                         [](const auto& dtype) { return std::string(name(dtype.param)); });

// Padded embeddings have rows that no token of the tokenizer stands for; drawing one could not be decoded.
TEST_F(GenerateTest, RowsBeyondTheTokenizersAreNeverDrawn) {
  const auto largest = [&](int64_t vocab_size) {
    const auto tokens =
        generated(prompt_, {.max_tokens = 60, .sampler = {.temperature = 5}, .vocab_size = vocab_size});
    return *std::ranges::max_element(tokens);
  };
  EXPECT_EQ(largest(5), 4);
  EXPECT_EQ(largest(0), 12);
  EXPECT_THAT([&] { largest(14); }, ThrowsMessage<ValueError>(AllOf(HasSubstr("14"), HasSubstr("13"))));
}

// Twelve tokens from a context of five: the text outgrows what the model sees, which goes
// on from three tokens.
TEST_P(GenerateDtypeTest, GreedyTakesTheLikeliestAndGoesOnFromTheLastHalfOfAFullContext) {
  const auto tokens = generated(prompt_, {.max_tokens = 12, .sampler = {.temperature = 0}});
  ASSERT_EQ(tokens.size(), 12u);
  std::vector<int32_t> seen = prompt_;
  for (const int32_t token : tokens) {
    if (seen.size() == 6) seen.erase(seen.begin(), seen.begin() + 3);
    EXPECT_EQ(token, ranking(seen)[0]);
    seen.push_back(token);
  }
}

TEST_F(GenerateTest, APromptLongerThanTheContextUsesItsLastTokens) {
  const std::vector<int32_t> longer = {9, 9, 2, 7, 3, 1, 4}, end = {2, 7, 3, 1, 4};
  EXPECT_EQ(generated(longer, {.max_tokens = 6}), generated(end, {.max_tokens = 6}));
}

TEST_F(GenerateTest, DrawsAmongTheTopKAlone) {
  const auto order = ranking(prompt_);
  std::set<int32_t> drawn;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    drawn.insert(
        generated(prompt_, {.max_tokens = 1, .sampler = {.temperature = 5, .top_k = 3}, .seed = seed}).at(0));
  }
  EXPECT_EQ(drawn, std::set<int32_t>(order.begin(), order.begin() + 3));
  EXPECT_EQ(generated(prompt_, {.max_tokens = 9, .sampler = {.top_k = 1}}),
            generated(prompt_, {.max_tokens = 9, .sampler = {.temperature = 0}}));
}

// With temperature 2 and all tokens, frequencies over many seeds are softmax(logits / 2).
TEST_P(GenerateDtypeTest, DrawsWithTheSoftmaxsProbabilities) {
  const std::vector<int64_t> ids(prompt_.begin(), prompt_.end());
  const auto logits = select(model_.logits(Tensor::from<int64_t>({1, 3}, ids)), 1, -1).to_vector<double>();
  double total = 0;
  for (const double logit : logits) total += std::exp(logit / 2);
  std::vector<double> count(13, 0);
  const int n = 3000;
  for (uint64_t seed = 0; seed < n; ++seed) {
    const GenerateOptions options = {
        .max_tokens = 1, .sampler = {.temperature = 2, .top_k = 0}, .seed = seed};
    count[static_cast<size_t>(generated(prompt_, options).at(0))] += 1.0 / n;
  }
  for (size_t i = 0; i < 13; ++i) {
    const double p = std::exp(logits[i] / 2) / total;
    EXPECT_NEAR(count[i], p, 5 * std::sqrt(p * (1 - p) / n)) << i;
  }
}

TEST_F(GenerateTest, TheSeedDecides) {
  GenerateOptions options = {.max_tokens = 20, .sampler = {.temperature = 1}, .seed = 4};
  const auto first = generated(prompt_, options);
  EXPECT_EQ(generated(prompt_, options), first);
  options.seed = 5;
  EXPECT_NE(generated(prompt_, options), first);
}

// Through three windows, and with texts that end at different times.
TEST(Generate, GivesTheSameTokensWithAndWithoutACache) {
  for (const char* architecture : {"gpt2", "llama"}) {
    const auto model = make_model({.architecture = architecture,
                                   .vocab_size = 40,
                                   .n_layer = 2,
                                   .n_head = 4,
                                   .n_embd = 16,
                                   .n_positions = 12});
    Generator generator{.seed = 1};
    for (const auto& [name, parameter] : model->parameters()) {
      const NoGradGuard no_grad;
      Tensor(parameter).copy_from(random_normal(parameter.shape(), 0, 0.4, generator));
    }
    for (const double temperature : {0.0, 1.0}) {
      GenerateOptions options = {.max_tokens = 30,
                                 .sampler = {.repetition_penalty = 1.2, .temperature = temperature},
                                 .samples = 3,
                                 .stop_token = 7};
      const auto cached = generate(*model, std::vector<int32_t>{3, 1, 4, 1, 5}, options);
      options.use_cache = false;
      EXPECT_EQ(cached, generate(*model, std::vector<int32_t>{3, 1, 4, 1, 5}, options))
          << architecture << " at temperature " << temperature;
      EXPECT_GT(cached[0].size() + cached[1].size(), 20u);
    }
  }
}

TEST(Generate, ACacheThatGrowsByOneCopiesSeldomAndKeepsWhatItHeld) {
  const auto model = make_model({.architecture = "llama",
                                 .vocab_size = 40,
                                 .n_layer = 1,
                                 .n_head = 2,
                                 .n_embd = 16,
                                 .n_positions = 100});
  const NoGradGuard no_grad;
  KeyValueCache cache(*model);
  const auto allocations = [] { return memory_stats(default_device(), "key_value_cache").allocations; };
  const int64_t before = allocations();
  for (int64_t t = 0; t < 100; ++t) {
    const Tensor k = Tensor::full({1, 2, 1, 8}, static_cast<double>(t)), v = Tensor::full({1, 2, 1, 8}, -1.0);
    const Tensor keys = cache.append(0, k, v).first;
    cache.advance(1);
    const auto numbers = keys.to_vector<float>();
    ASSERT_EQ(std::ssize(numbers), 2 * (t + 1) * 8);
    for (int64_t i = 0; i <= t; ++i)
      EXPECT_EQ(numbers[static_cast<size_t>(i * 8)], static_cast<float>(i)) << t;
  }
  EXPECT_EQ(allocations() - before, 2 * 8);  // keys and values for 1, 2, 4, ... 64, and all 100
}

TEST(Generate, AShortTextFromALongContextHoldsLittleMemory) {
  const auto model = make_model({.architecture = "llama",
                                 .vocab_size = 40,
                                 .n_layer = 2,
                                 .n_head = 2,
                                 .n_embd = 16,
                                 .n_positions = 131072});
  const int64_t before = memory_stats({}).live_bytes;
  reset_peak({});
  EXPECT_EQ(generate(*model, std::vector<int32_t>{3, 1, 4}, {.max_tokens = 20}).at(0).size(), 20u);
  EXPECT_LT(memory_stats({}).peak_bytes - before, 1 << 20);  // keys and values of all positions: 33 MB
  EXPECT_EQ(memory_stats({}).live_bytes, before);
}

TEST_F(GenerateTest, ASampleIsTheSameAloneAndAmongOthers) {
  GenerateOptions options = {.max_tokens = 20, .sampler = {.temperature = 1}, .samples = 3, .seed = 4};
  const auto samples = generate(model_, prompt_, options);
  ASSERT_EQ(samples.size(), 3u);
  options.samples = 1;
  for (size_t i = 0; i < 3; ++i) {
    options.seed = 4 + i;
    EXPECT_EQ(samples[i], generated(prompt_, options)) << i;
  }
}

// Prompt and generated tokens, those that left the context included.
TEST_F(GenerateTest, ThePenaltyIsOnWhatTheWholeTextHolds) {
  const auto tokens =
      generated(prompt_, {.max_tokens = 12, .sampler = {.repetition_penalty = 1.5, .temperature = 0}});
  std::vector<int32_t> seen = prompt_;
  std::set<int32_t> held(prompt_.begin(), prompt_.end());
  for (const int32_t token : tokens) {
    if (seen.size() == 6) seen.erase(seen.begin(), seen.begin() + 3);
    std::vector<float> logits = logits_after(seen);
    for (const int32_t h : held) {
      float& logit = logits[static_cast<size_t>(h)];
      logit *= logit < 0 ? 1.5f : 1 / 1.5f;
    }
    EXPECT_EQ(token, std::ranges::max_element(logits) - logits.begin());
    seen.push_back(token);
    held.insert(token);
  }
}

TEST_F(GenerateTest, EndsASampleAtTheStopTokenOrWhenToldTo) {
  GenerateOptions options = {.max_tokens = 12, .sampler = {.temperature = 1}, .samples = 2};
  const auto all = generate(model_, prompt_, options);
  options.stop_token = all[0][4];
  const auto until_stop = [&](const std::vector<int32_t>& tokens) {
    return std::vector(tokens.begin(), std::ranges::find(tokens, all[0][4]));
  };
  EXPECT_EQ(generate(model_, prompt_, options), (std::vector{until_stop(all[0]), until_stop(all[1])}));

  options.stop_token.reset();
  std::vector<std::vector<int32_t>> told(2);
  options.on_token = [&](int64_t sample, int32_t token) {
    told[static_cast<size_t>(sample)].push_back(token);
    return sample == 1 || told[0].size() < 2;
  };
  EXPECT_EQ(generate(model_, prompt_, options), told);
  EXPECT_EQ(told[0], std::vector(all[0].begin(), all[0].begin() + 2));
  EXPECT_EQ(told[1], all[1]);
  EXPECT_THAT(generated(prompt_, {.max_tokens = 0}), IsEmpty());
}

TEST_F(GenerateTest, MistakesAreSaid) {
  const auto expect = [&](std::vector<int32_t> prompt, GenerateOptions options, const char* text) {
    EXPECT_THAT([&] { generate(model_, prompt, options); }, ThrowsMessage<ValueError>(HasSubstr(text)));
  };
  expect({}, {}, "prompt has no tokens");
  expect({13}, {}, "token 13");
  expect({-1}, {}, "token -1");
  expect({1}, {.max_tokens = -1}, "max_tokens is -1");
  expect({1}, {.samples = 0}, "samples is 0");
  expect({1}, {.sampler = {.temperature = -0.5}}, "temperature is -0.5");
}

TEST_F(GenerateTest, AModelOfNaNsIsSaid) {
  const NoGradGuard no_grad;
  Tensor(model_.parameters()[0].second).fill(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT([&] { generate(model_, prompt_); }, ThrowsMessage<RuntimeError>(HasSubstr("no numbers")));
}

}  // namespace
}  // namespace tapehead
