#include "tapehead/core/shape.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kHuge = int64_t{1} << 62;

TEST(Shape, CountsAndPrints) {
  EXPECT_EQ(Shape().numel(), 1);
  EXPECT_EQ(Shape().dim(), 0);
  EXPECT_EQ(Shape().str(), "()");
  EXPECT_EQ(Shape({3}).str(), "(3,)");
  EXPECT_EQ(Shape({2, 3}).str(), "(2, 3)");
  EXPECT_EQ(Shape({2, 3, 4}).numel(), 24);
  EXPECT_EQ(Shape({2, 0, 4}).numel(), 0);
}

TEST(Shape, SizesAreNotNegativeAndTheirProductFits) {
  EXPECT_THAT([] { Shape({2, -1}); }, ThrowsMessage<ValueError>(HasSubstr("(2, -1)")));
  EXPECT_THAT([] { Shape({kHuge, 2}); }, ThrowsMessage<ValueError>(HasSubstr("too many")));
  EXPECT_EQ(Shape({kHuge, 1}).numel(), kHuge);
}

// Its numel is 0, but its strides would overflow.
TEST(Shape, AnEmptyShapeOfHugeSizesIsRefused) {
  EXPECT_THROW(Shape({kHuge, 4, 0}), ValueError);
  EXPECT_THROW(Shape({0, kHuge, 4}), ValueError);
  EXPECT_EQ(Shape({kHuge, 0}).contiguous_strides(), Strides({1, 1}));
}

TEST(Shape, AxesCountFromBothEnds) {
  const Shape s = {2, 3, 4};
  EXPECT_EQ(s[0], 2);
  EXPECT_EQ(s[-1], 4);
  EXPECT_EQ(s.normalize_axis(-3, "test"), 0);
  for (const int64_t axis : {int64_t{3}, int64_t{-4}, std::numeric_limits<int64_t>::min()}) {
    EXPECT_THAT([&] { s[axis]; },
                ThrowsMessage<ValueError>(AllOf(HasSubstr(std::to_string(axis)), HasSubstr("(2, 3, 4)"))));
  }
  EXPECT_THROW(Shape()[0], ValueError);
}

TEST(Shape, OneDimensionChanges) {
  const Shape s = {2, 3};
  EXPECT_EQ(s.with(-1, 5), Shape({2, 5}));
  EXPECT_EQ(s.without(0), Shape({3}));
  EXPECT_EQ(s.insert(0, 7), Shape({7, 2, 3}));
  EXPECT_EQ(s.insert(2, 7), Shape({2, 3, 7}));
  EXPECT_EQ(s.insert(-1, 7), Shape({2, 3, 7}));
  EXPECT_EQ(s.insert(-3, 7), Shape({7, 2, 3}));
  EXPECT_THROW(s.insert(3, 1), ValueError);
  EXPECT_THROW(s.insert(-4, 1), ValueError);
  EXPECT_THROW(s.without(2), ValueError);
}

TEST(Shape, ContiguousStridesAreRowMajor) {
  EXPECT_EQ(Shape({2, 3, 4}).contiguous_strides(), Strides({12, 4, 1}));
  EXPECT_EQ(Shape().contiguous_strides(), Strides());
}

TEST(Broadcast, FollowsNumPy) {
  struct Case {
    Shape a, b, result;
  };
  for (const Case& c : {Case{{}, {}, {}}, Case{{3}, {}, {3}}, Case{{2, 3}, {3}, {2, 3}},
                        Case{{2, 1}, {1, 3}, {2, 3}}, Case{{8, 1, 6, 1}, {7, 1, 5}, {8, 7, 6, 5}},
                        Case{{0, 3}, {1, 3}, {0, 3}}, Case{{1}, {0}, {0}}, Case{{2, 1}, {0}, {2, 0}}}) {
    EXPECT_EQ(broadcast(c.a, c.b, "op"), c.result);
    EXPECT_EQ(broadcast(c.b, c.a, "op"), c.result);
    EXPECT_TRUE(broadcasts_to(c.a, c.result));
    EXPECT_TRUE(broadcasts_to(c.b, c.result));
  }
}

TEST(Broadcast, ErrorsNameTheOpAndBothShapes) {
  EXPECT_THAT(
      [] {
        broadcast({2, 3}, {2}, "add");
      },
      ThrowsMessage<ValueError>(
          AllOf(HasSubstr("[add]"), HasSubstr("(2, 3)"), HasSubstr("(2,)"), HasSubstr("3 meets 2"))));
  EXPECT_THROW(broadcast({0}, {2}, "add"), ValueError);
}

TEST(Broadcast, IsOneDirectionForOneTensor) {
  EXPECT_FALSE(broadcasts_to({2, 3}, {3}));
  EXPECT_FALSE(broadcasts_to({2}, {1}));
  EXPECT_FALSE(broadcasts_to({2, 1}, {3, 1}));
  EXPECT_TRUE(broadcasts_to({1, 3}, {2, 3}));
}

TEST(Broadcast, StridesAreZeroAlongWhatIsRepeated) {
  EXPECT_EQ(broadcast_strides({3, 1}, {1, 1}, {2, 3, 4}), Strides({0, 1, 0}));
  EXPECT_EQ(broadcast_strides({3}, {5}, {3}), Strides({5}));
  EXPECT_EQ(broadcast_strides({}, {}, {2}), Strides({0}));
  EXPECT_THROW(broadcast_strides({2}, {1}, {3}), ValueError);
}

}  // namespace
}  // namespace tapehead
