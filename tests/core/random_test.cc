#include "tapehead/core/random.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tapehead {
namespace {

using ::testing::ElementsAre;

// The answers that the generator's authors publish for philox4x32 of 10 rounds: zeros, ones, digits of pi.
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_THAT(philox4x32({0, 0, 0, 0}, {0, 0}), ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  constexpr uint32_t ones = 0xffffffff;
  EXPECT_THAT(philox4x32({ones, ones, ones, ones}, {ones, ones}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(Philox, SeedIsTheKeyAndCounterTheLowHalfLowWordFirst) {
  EXPECT_EQ(philox(0x2222222211111111, 0x4444444433333333),
            philox4x32({0x33333333, 0x44444444, 0, 0}, {0x11111111, 0x22222222}));
}

TEST(ToUniform, IsBelowOneAndExact) {
  EXPECT_EQ(to_uniform(0), 0.0f);
  EXPECT_EQ(to_uniform(0xffffffff), 1 - 0x1p-24f);
  EXPECT_EQ(to_uniform(0x80000000), 0.5f);
}

TEST(Generator, TakesWholeBlocksOfFour) {
  Generator g{.seed = 1};
  EXPECT_EQ(g.take(1), 0u);
  EXPECT_EQ(g.take(4), 1u);
  EXPECT_EQ(g.take(5), 2u);
  EXPECT_EQ(g.take(0), 4u);
  EXPECT_EQ(g.next, 4u);
}

TEST(Generator, ContinuesFromWhatWasSaved) {
  Generator a{.seed = 9};
  a.word();
  a.below(10);
  Generator b{.seed = a.seed, .next = a.next};
  for (int i = 0; i < 10; ++i) EXPECT_EQ(a.word(), b.word());
  EXPECT_NE(Generator{.seed = 9}.word(), Generator{.seed = 10}.word());
}

TEST(Generator, UniformHasTheRightMeanAndSpread) {
  Generator g{.seed = 3};
  constexpr int n = 100'000;
  double sum = 0, squares = 0;
  for (int i = 0; i < n; ++i) {
    const double u = g.uniform();
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    squares += u * u;
  }
  EXPECT_NEAR(sum / n, 0.5, 0.005);
  EXPECT_NEAR(squares / n, 1.0 / 3, 0.005);
}

// Chi-square: for k bins and n draws, the sum of (count - n/k)²·k/n has mean k-1 and deviation sqrt(2(k-1)).
TEST(Generator, BelowIsInRangeAndEven) {
  for (const uint64_t k : {1u, 2u, 3u, 7u, 100u}) {
    Generator g{.seed = k};
    constexpr int n = 100'000;
    std::vector<int> counts(k);
    for (int i = 0; i < n; ++i) {
      const uint64_t x = g.below(k);
      ASSERT_LT(x, k);
      ++counts[x];
    }
    const double expected = static_cast<double>(n) / static_cast<double>(k);
    double chi2 = 0;
    for (const int c : counts) chi2 += (c - expected) * (c - expected) / expected;
    const double degrees = static_cast<double>(k - 1);
    EXPECT_LE(chi2, degrees + 5 * std::sqrt(2 * degrees)) << k;
  }
}

// With a plain remainder, n = 3·2^62 would give the lowest third of numbers twice as often as the others.
TEST(Generator, BelowIsUnbiasedForHugeRanges) {
  Generator g{.seed = 4};
  constexpr uint64_t n = uint64_t{3} << 62;
  constexpr int draws = 30'000;
  int low = 0;
  for (int i = 0; i < draws; ++i) low += g.below(n) < n / 3;
  EXPECT_NEAR(low, draws / 3, 500);
}

}  // namespace
}  // namespace tapehead
