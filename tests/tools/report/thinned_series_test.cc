#include "tapehead/tools/report/thinned_series.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tapehead {
namespace {

TEST(ThinnedSeries, KeepsAShortCurveAsItIs) {
  ThinnedSeries series;
  for (int i = 1; i <= 900; ++i) series.add({static_cast<double>(i), std::sin(i)});
  const std::vector<Point> points = series.points();
  ASSERT_EQ(points.size(), 900u);
  for (size_t i = 0; i < 900; ++i) EXPECT_EQ(points[i].y, std::sin(static_cast<double>(i + 1)));
}

// Every stretch of a long curve is there with its extremes: a single leap is not lost.
TEST(ThinnedSeries, KeepsTheExtremesOfALongCurve) {
  for (const int leap : {12345, 33333, 54321, 65432, 77777, 90001}) {
    ThinnedSeries series(100);
    for (int i = 1; i <= 100000; ++i) {
      series.add({static_cast<double>(i), i == leap ? 99 : i == leap + 1 ? -99 : std::sin(i)});
    }
    const std::vector<Point> points = series.points();
    EXPECT_LE(points.size(), 201u);
    EXPECT_GE(points.size(), 100u);
    EXPECT_TRUE(std::ranges::is_sorted(points, std::less(), &Point::x));
    const auto holds = [&](double x, double y) {
      return std::ranges::any_of(points, [&](Point p) { return p.x == x && p.y == y; });
    };
    EXPECT_TRUE(holds(leap, 99)) << leap;
    EXPECT_TRUE(holds(leap + 1, -99)) << leap;
    EXPECT_TRUE(holds(100000, std::sin(100000)));  // the last
    double widest = 0;
    for (size_t i = 1; i < points.size(); ++i) widest = std::max(widest, points[i].x - points[i - 1].x);
    EXPECT_LE(widest, 2 * 100000.0 / 50);
  }
}

TEST(ThinnedSeries, LeavesOutWhatCannotBeDrawn) {
  ThinnedSeries series;
  EXPECT_TRUE(series.points().empty());
  for (const Point p :
       {Point{1, 1}, Point{2, std::nan("")}, Point{3, std::numeric_limits<double>::infinity()}, Point{3, 3},
        Point{3, 4}, Point{2, 5}}) {
    series.add(p);
  }
  ASSERT_EQ(series.points().size(), 2u);
  EXPECT_EQ(series.points()[1].y, 3);
}

}  // namespace
}  // namespace tapehead
