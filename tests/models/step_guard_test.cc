#include "tapehead/models/step_guard.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tapehead {
namespace {

TEST(RunningStatisticsTest, AreThoseOfTheirWeights) {
  RunningStatistics s;
  for (const double x : {3.0, 1.0, 2.0}) s.add(x);
  const double a = 0.98 * 0.98, b = 0.98, total = a + b + 1;
  const double mean = (3 * a + 1 * b + 2) / total, square = (9 * a + 1 * b + 4) / total;
  EXPECT_NEAR(s.mean(), mean, 1e-12);
  EXPECT_NEAR(s.deviation(), std::sqrt(square - mean * mean), 1e-12);
  EXPECT_NEAR(s.z_score(5), (5 - mean) / std::sqrt(square - mean * mean), 1e-9);
}

// Twenty steps between 1.9 and 2.1, with a norm between 0.4 and 0.6: both deviate by 0.1.
class StepGuardTest : public testing::Test {
 protected:
  StepGuardTest() {
    for (int i = 0; i < 20; ++i) {
      // Nothing to compare with yet: a leap passes.
      EXPECT_FALSE(guard_.skips(i % 2 ? 1.9 : 2.1, i % 2 ? 0.4 : 0.6, 3));
    }
  }
  StepGuard guard_;
};

TEST_F(StepGuardTest, SkipsLeapsOfTheLossAndOfTheNormAndOnlyUp) {
  EXPECT_TRUE(guard_.skips(2.5, 0.5, 3));
  EXPECT_TRUE(guard_.skips(2.0, 0.9, 3));
  EXPECT_FALSE(guard_.skips(1.0, 0.1, 3));
  EXPECT_FALSE(guard_.skips(2.2, 0.7, 3));
}

TEST_F(StepGuardTest, ALimitOf0SkipsNothing) { EXPECT_FALSE(guard_.skips(1e6, 1e6, 0)); }

TEST_F(StepGuardTest, WhatWasSkippedDoesNotCount) {
  const RunningStatistics before = guard_.loss;
  EXPECT_TRUE(guard_.skips(100, 0.5, 3));
  EXPECT_EQ(guard_.loss, before);
}

TEST_F(StepGuardTest, AfterFiveInARowTheLeapIsTheNewLevel) {
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(guard_.skips(4, 0.5, 3)) << i;
  EXPECT_FALSE(guard_.skips(4, 0.5, 3));
  EXPECT_EQ(guard_.loss.count, 1);
  EXPECT_DOUBLE_EQ(guard_.loss.mean(), 4);
  EXPECT_FALSE(guard_.skips(4.1, 0.5, 3));
}

TEST(StepGuardTests, LetsTheFirstStepsPass) {
  StepGuard guard;
  for (int i = 0; i < 19; ++i) EXPECT_FALSE(guard.skips(2 + 0.01 * (i % 2), 1, 3));
  EXPECT_FALSE(guard.skips(100, 1, 3));
}

}  // namespace
}  // namespace tapehead
