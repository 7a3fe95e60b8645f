#include "tapehead/models/schedule.h"

#include <gtest/gtest.h>

#include "tapehead/tests/models/gpt2_golden.h"

namespace tapehead {
namespace {

TEST(ScheduleTest, IsTheOneThatTheGoldenStepsUsed) {
  const auto expected = gpt2_golden().tensor("train/lr").to_vector<double>();
  const CosineSchedule schedule{.peak = 1e-3, .minimum = 1e-4, .warmup = 3, .steps = 10};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_DOUBLE_EQ(schedule.at(static_cast<int64_t>(i) + 1), expected[i]) << i + 1;
  }
}

TEST(ScheduleTest, ReachesPeakAndMinimumAndStaysThere) {
  const CosineSchedule schedule{.peak = 2, .minimum = 1, .warmup = 4, .steps = 8};
  EXPECT_EQ(schedule.at(2), 1);
  EXPECT_EQ(schedule.at(4), 2);
  EXPECT_DOUBLE_EQ(schedule.at(6), 1.5);
  EXPECT_EQ(schedule.at(8), 1);
  EXPECT_EQ(schedule.at(100), 1);
}

TEST(ScheduleTest, WorksWithoutWarmUpAndWithNothingElse) {
  const CosineSchedule no_warmup{.peak = 2, .minimum = 0, .warmup = 0, .steps = 2};
  EXPECT_DOUBLE_EQ(no_warmup.at(1), 1);
  EXPECT_EQ(no_warmup.at(2), 0);
  const CosineSchedule all_warmup{.peak = 2, .minimum = 0, .warmup = 4, .steps = 2};
  EXPECT_EQ(all_warmup.at(2), 1);
}

}  // namespace
}  // namespace tapehead
