#include "tapehead/models/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "tapehead/core/view.h"
#include "tapehead/models/gpt.h"
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

  // The tokens by falling logit after `text`.
  std::vector<int32_t> ranking(std::vector<int32_t> text) const {
    if (text.size() > 5) text.erase(text.begin(), text.end() - 5);
    const std::vector<int64_t> ids(text.begin(), text.end());
    const auto logits = model_.logits(Tensor::from<int64_t>({1, std::ssize(ids)}, ids)).to_vector<float>();
    std::vector<int32_t> order(13);
    for (int32_t i = 0; i < 13; ++i) order[static_cast<size_t>(i)] = i;
    const auto last = logits.end() - 13;
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return last[a] > last[b]; });
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

// Twelve tokens from a context of five: the text outgrows what the model sees.
TEST_P(GenerateDtypeTest, GreedyTakesTheLikeliestAfterTheLastTokensOfTheContext) {
  const auto tokens = generate(model_, prompt_, {.max_tokens = 12, .temperature = 0});
  ASSERT_EQ(tokens.size(), 12u);
  std::vector<int32_t> text = prompt_;
  for (const int32_t token : tokens) {
    EXPECT_EQ(token, ranking(text)[0]);
    text.push_back(token);
  }
}

TEST_F(GenerateTest, APromptLongerThanTheContextUsesItsLastTokens) {
  const std::vector<int32_t> longer = {9, 9, 2, 7, 3, 1, 4}, end = {2, 7, 3, 1, 4};
  EXPECT_EQ(generate(model_, longer, {.max_tokens = 6}), generate(model_, end, {.max_tokens = 6}));
}

TEST_F(GenerateTest, DrawsAmongTheTopKAlone) {
  const auto order = ranking(prompt_);
  std::set<int32_t> drawn;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    drawn.insert(
        generate(model_, prompt_, {.max_tokens = 1, .temperature = 5, .top_k = 3, .seed = seed}).at(0));
  }
  EXPECT_EQ(drawn, std::set<int32_t>(order.begin(), order.begin() + 3));
  EXPECT_EQ(generate(model_, prompt_, {.max_tokens = 9, .top_k = 1}),
            generate(model_, prompt_, {.max_tokens = 9, .temperature = 0}));
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
    count[static_cast<size_t>(
        generate(model_, prompt_, {.max_tokens = 1, .temperature = 2, .top_k = 0, .seed = seed}).at(0))] +=
        1.0 / n;
  }
  for (size_t i = 0; i < 13; ++i) {
    const double p = std::exp(logits[i] / 2) / total;
    EXPECT_NEAR(count[i], p, 5 * std::sqrt(p * (1 - p) / n)) << i;
  }
}

TEST_F(GenerateTest, TheSeedDecides) {
  const GenerateOptions options{.max_tokens = 20, .temperature = 1, .seed = 4};
  EXPECT_EQ(generate(model_, prompt_, options), generate(model_, prompt_, options));
  EXPECT_NE(generate(model_, prompt_, options),
            generate(model_, prompt_, {.max_tokens = 20, .temperature = 1, .seed = 5}));
}

TEST_F(GenerateTest, EndsAtTheStopTokenOrWhenToldTo) {
  const auto all = generate(model_, prompt_, {.max_tokens = 12, .temperature = 1});
  std::vector<int32_t> until_stop;
  for (const int32_t token : all) {
    if (token == all[4]) break;
    until_stop.push_back(token);
  }
  EXPECT_EQ(generate(model_, prompt_, {.max_tokens = 12, .temperature = 1, .stop_token = all[4]}),
            until_stop);

  std::vector<int32_t> told;
  const auto two =
      generate(model_, prompt_, {.max_tokens = 12, .temperature = 1, .on_token = [&](int32_t token) {
                                   told.push_back(token);
                                   return told.size() < 2;
                                 }});
  EXPECT_EQ(two, (std::vector<int32_t>{all[0], all[1]}));
  EXPECT_EQ(told, two);
  EXPECT_THAT(generate(model_, prompt_, {.max_tokens = 0}), IsEmpty());
}

TEST_F(GenerateTest, MistakesAreSaid) {
  const auto expect = [&](std::vector<int32_t> prompt, GenerateOptions options, const char* text) {
    EXPECT_THAT([&] { generate(model_, prompt, options); }, ThrowsMessage<ValueError>(HasSubstr(text)));
  };
  expect({}, {}, "prompt has no tokens");
  expect({13}, {}, "token 13");
  expect({-1}, {}, "token -1");
  expect({1}, {.max_tokens = -1}, "max_tokens is -1");
  expect({1}, {.temperature = -0.5}, "temperature is -0.5");
  expect({1}, {.temperature = std::numeric_limits<double>::quiet_NaN()}, "temperature is nan");
  expect({1}, {.top_k = -2}, "top_k is -2");
}

TEST_F(GenerateTest, AModelOfNaNsIsSaid) {
  const NoGradGuard no_grad;
  Tensor(model_.parameters()[0].second).fill(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT([&] { generate(model_, prompt_); }, ThrowsMessage<RuntimeError>(HasSubstr("no numbers")));
}

}  // namespace
}  // namespace tapehead
