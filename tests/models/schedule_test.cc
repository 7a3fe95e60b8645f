#include "tapehead/models/schedule.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tapehead/tests/models/gpt2_golden.h"

namespace tapehead {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ScheduleTest, CosineIsTheOneThatTheGoldenStepsUsed) {
  const auto expected = gpt2_golden().tensor("train/lr").to_vector<double>();
  const Schedule schedule{.peak = 1e-3, .minimum = 1e-4, .warmup = 3, .steps = 10};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_DOUBLE_EQ(schedule.at(static_cast<int64_t>(i) + 1), expected[i]) << i + 1;
  }
}

// By hand, for 4 steps of warm-up in 12, from 2 down to 1.
TEST(ScheduleTest, EveryOneHasTheNumbersOfItsFormula) {
  struct Row {
    const char* name;
    int64_t decay;
    double at[6];  // steps 2, 4, 6, 8, 10, 12
  };
  const double root = std::sqrt(0.5);
  const Row rows[] = {
      {"cosine", 0, {1, 2, 1 + (1 + root) / 2, 1.5, 1 + (1 - root) / 2, 1}},
      {"linear", 0, {1, 2, 1.75, 1.5, 1.25, 1}},
      {"constant", 0, {1, 2, 2, 2, 2, 2}},
      {"wsd", 4, {1, 2, 2, 2, 1.5, 1}},
      {"wsd", 6, {1, 2, 2, 2 - 1.0 / 3, 2 - 2.0 / 3, 1}},
      {"wsd", 0, {1, 2, 2, 2, 2, 1}},            // a tenth of 12 steps: 1
      {"wsd", 100, {1, 2, 1.75, 1.5, 1.25, 1}},  // not before the warm-up ends
  };
  for (const Row& row : rows) {
    const Schedule schedule{
        .name = row.name, .peak = 2, .minimum = 1, .warmup = 4, .steps = 12, .decay = row.decay};
    for (int64_t i = 0; i < 6; ++i)
      EXPECT_DOUBLE_EQ(schedule.at(2 * (i + 1)), row.at[i]) << row.name << row.decay << " at " << 2 * (i + 1);
    EXPECT_EQ(schedule.at(100), row.at[5]) << row.name;
  }
}

TEST(ScheduleTest, WorksWithoutWarmUpAndWithNothingElse) {
  for (const std::string_view name : Schedule::names()) {
    const Schedule no_warmup{.name = std::string(name), .peak = 2, .minimum = 0, .warmup = 0, .steps = 2};
    EXPECT_EQ(no_warmup.at(2), name == "constant" ? 2 : 0) << name;
    const Schedule all_warmup{.name = std::string(name), .peak = 2, .minimum = 0, .warmup = 4, .steps = 2};
    EXPECT_EQ(all_warmup.at(2), 1) << name;
  }
}

TEST(ScheduleTest, AnotherNameIsRefusedWithThoseThatThereAre) {
  EXPECT_THAT([] { Schedule{.name = "cos"}.at(1); },
              ThrowsMessage<ValueError>(HasSubstr("name is cos: it is cosine, linear, constant, wsd")));
}

}  // namespace
}  // namespace tapehead
