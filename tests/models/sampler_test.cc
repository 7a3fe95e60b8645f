#include "tapehead/models/sampler.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tapehead/core/error.h"
#include "tapehead/core/safetensors.h"

namespace tapehead {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Every logit is drawn from as it is.
constexpr SamplerOptions kPlain = {.temperature = 1, .top_k = 0};

// Hazard: a prompt may hold tokens that are not drawn from, whose logits are not there to be made smaller.
TEST(Sampler, APenaltyPassesOverTokensWithoutALogit) {
  const std::vector<double> logits = {1, 2, 3};
  const std::vector<int64_t> text = {int64_t{1} << 40, 3, 2};
  SamplerOptions options = kPlain;
  options.repetition_penalty = 2;
  const std::vector<Candidate> left = candidates(logits, text, options);
  ASSERT_EQ(left.size(), 3u);
  EXPECT_EQ(left[0].token, 1);
  EXPECT_EQ(left[1].logit, 1.5);
}

TEST(Sampler, LeavesWhatTransformersLeaves) {
  const SafetensorsFile golden = SafetensorsFile::open("tests/golden/sampler.safetensors");
  int cases = 0;
  for (const auto& [name, settings] : golden.metadata()) {
    if (!name.starts_with("sampler/")) continue;
    ++cases;
    const nlohmann::json json = nlohmann::json::parse(settings);
    const SamplerOptions options = {.repetition_penalty = json.value("repetition_penalty", 1.0),
                                    .temperature = json.value("temperature", 1.0),
                                    .top_k = json.value("top_k", int64_t{0}),
                                    .top_p = json.value("top_p", 1.0),
                                    .min_p = json.value("min_p", 0.0)};
    const auto logits = golden.tensor(name + "/logits").to_vector<double>(),
               expected = golden.tensor(name + "/processed").to_vector<double>();
    const auto text = golden.tensor(name + "/text").to_vector<int64_t>();
    std::vector<double> processed(expected.size(), -kInfinity);
    for (const Candidate& c : candidates(logits, text, options)) {
      processed[static_cast<size_t>(c.token)] = c.logit;
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      if (std::isinf(expected[i])) {
        EXPECT_EQ(processed[i], expected[i]) << name << ", token " << i;
      } else {
        EXPECT_NEAR(processed[i], expected[i], 1e-12 * std::abs(expected[i])) << name << ", token " << i;
      }
    }
  }
  EXPECT_GE(cases, 20);
}

TEST(Sampler, AtTemperature0LeavesTheLikeliestAndOfEqualOnesTheSmallest) {
  const auto left = candidates(std::vector<double>{1, 3, 3, 2}, {}, {.temperature = 0});
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].token, 1);
}

TEST(Sampler, PenalizesATokenOnceAtTemperature0Too) {
  const std::vector<int64_t> text = {1, 1, 1};
  EXPECT_EQ(candidates(std::vector<double>{1, 3}, text, {.repetition_penalty = 2, .temperature = 0})[0].token,
            1);
  EXPECT_EQ(candidates(std::vector<double>{1, 3}, text, {.repetition_penalty = 4, .temperature = 0})[0].token,
            0);
}

TEST(Sampler, DrawsByProbabilityWithOneNumberEach) {
  const std::vector<double> probability = {0.5, 0.3, 0.2};
  std::vector<double> logits;
  for (const double p : probability)
    logits.push_back(std::log(p) + 700);  // exp() of it would overflow if summed
  const auto left = candidates(logits, {}, kPlain);
  std::vector<double> count(3, 0);
  Generator generator{.seed = 3};
  constexpr int n = 20000;
  for (int i = 0; i < n; ++i) count[static_cast<size_t>(draw(left, generator))] += 1.0 / n;
  EXPECT_EQ(generator.next, static_cast<uint64_t>(n));
  for (size_t i = 0; i < 3; ++i) {
    const double p = probability[i];
    EXPECT_NEAR(count[i], p, 5 * std::sqrt(p * (1 - p) / n)) << i;
  }
}

TEST(Sampler, DrawsTheOnlyCandidateWithoutANumber) {
  Generator generator;
  EXPECT_EQ(draw(std::vector<Candidate>{{7, 0.5}}, generator), 7);
  EXPECT_EQ(generator.next, 0u);
}

TEST(Sampler, MistakesAreSaid) {
  const auto expect = [](SamplerOptions options, const char* text) {
    EXPECT_THAT([&] { options.validate(); }, ThrowsMessage<ValueError>(HasSubstr(text)));
  };
  expect({.repetition_penalty = 0}, "repetition_penalty is 0");
  expect({.temperature = -0.5}, "temperature is -0.5");
  expect({.temperature = std::nan("")}, "temperature is nan");
  expect({.top_k = -2}, "top_k is -2");
  expect({.top_p = 0}, "top_p is 0");
  expect({.top_p = 1.5}, "top_p is 1.5");
  expect({.min_p = -1}, "min_p is -1");
  EXPECT_THAT(
      [] {
        candidates(std::vector<double>{0, std::nan("")}, {}, kPlain);
      },
      ThrowsMessage<RuntimeError>(HasSubstr("no numbers")));
}

}  // namespace
}  // namespace tapehead
