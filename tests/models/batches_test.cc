#include "tapehead/models/batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// The tokens 0, 1, ..., count - 1: a token tells its place.
TokenFile counting_tokens(int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  const std::string path =
      testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() + ".tokens";
  TokenFile::write(path, tokens, std::max<int64_t>(count, 1));
  return TokenFile::open(path);
}

std::vector<int64_t> values(const Tensor& x) { return x.to_vector<int64_t>(); }

TEST(BatchesTest, TargetsFollowTheirInputsAndTheLastWindowIsMaskedWhereTheTextEnds) {
  const TokenFile tokens = counting_tokens(9);
  ASSERT_EQ(count_windows(tokens, 3), 3);
  const Batch batch = windows_in_order(tokens, 3, 1, 2);
  EXPECT_EQ(batch.ids.shape(), Shape({2, 3}));
  EXPECT_THAT(values(batch.ids), ElementsAre(3, 4, 5, 6, 7, 0));
  EXPECT_THAT(values(batch.targets), ElementsAre(4, 5, 6, 7, 8, kIgnoredTarget));
  EXPECT_EQ(batch.target_tokens, 5);
}

TEST(BatchesTest, WindowsAreCountedSoThatNoneIsWithoutATarget) {
  EXPECT_EQ(count_windows(counting_tokens(1), 3), 0);
  EXPECT_EQ(count_windows(counting_tokens(2), 3), 1);
  EXPECT_EQ(count_windows(counting_tokens(4), 3), 1);
  EXPECT_EQ(count_windows(counting_tokens(5), 3), 2);
  EXPECT_EQ(count_windows(counting_tokens(7), 3), 2);
}

// 23 tokens of context 3 make 8 windows, the last with one target; batches of 3 do not divide an epoch.
TEST(BatchesTest, AnEpochHasEveryTargetOnceInAnOrderOfItsOwn) {
  const TokenFile tokens = counting_tokens(23);
  Batches batches(tokens, 3, 3, 7);
  ASSERT_EQ(batches.windows(), 8);
  std::vector<int64_t> rows;  // first id of each row
  std::vector<int64_t> counts;
  for (int i = 0; i < 8; ++i) {
    const Batch batch = batches.next();
    const auto ids = values(batch.ids), targets = values(batch.targets);
    int64_t targets_of_batch = 0;
    for (size_t k = 0; k < ids.size(); ++k) {
      if (k % 3 == 0) rows.push_back(ids[k]);
      if (targets[k] == kIgnoredTarget) continue;
      EXPECT_EQ(targets[k], ids[k] + 1);
      ++targets_of_batch;
    }
    EXPECT_EQ(batch.target_tokens, targets_of_batch);
  }
  std::set<std::vector<int64_t>> orders;
  for (size_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> order(rows.begin() + static_cast<int64_t>(8 * epoch),
                               rows.begin() + static_cast<int64_t>(8 * epoch + 8));
    orders.insert(order);
    std::sort(order.begin(), order.end());
    EXPECT_THAT(order, ElementsAre(0, 3, 6, 9, 12, 15, 18, 21));
  }
  EXPECT_EQ(orders.size(), 3u);
}

TEST(BatchesTest, TheOrderDependsOnTheSeed) {
  const TokenFile tokens = counting_tokens(301);
  EXPECT_EQ(values(Batches(tokens, 20, 3, 1).next().ids), values(Batches(tokens, 20, 3, 1).next().ids));
  EXPECT_NE(values(Batches(tokens, 20, 3, 1).next().ids), values(Batches(tokens, 20, 3, 2).next().ids));
}

TEST(BatchesTest, GoesOnFromAnyPosition) {
  const TokenFile tokens = counting_tokens(23);
  Batches batches(tokens, 3, 3, 7);
  for (int i = 0; i < 12; ++i) {
    Batches resumed(tokens, 3, 3, 7, batches.position());
    Batch expected = batches.next();
    EXPECT_EQ(values(resumed.next().ids), values(expected.ids)) << i;
    EXPECT_EQ(resumed.position(), batches.position());
  }
}

TEST(BatchesTest, TooLittleTextIsAValueErrorThatSaysWhatToDo) {
  EXPECT_THAT([] { Batches(counting_tokens(3), 1, 3, 0); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr("3 tokens"), HasSubstr("shorter context"))));
  EXPECT_THAT([] { Batches(counting_tokens(23), 9, 3, 0); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr("batch of 9"), HasSubstr("1 to 8"))));
  EXPECT_THAT([] { Batches(counting_tokens(23), 8, 3, 0, {.epoch = 0, .window = 9}); },
              ThrowsMessage<ValueError>(HasSubstr("position 9")));
}

}  // namespace
}  // namespace tapehead
