#include "tapehead/tools/svg_chart.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tapehead {
namespace {

using Ticks = std::vector<double>;

int64_t count(const std::string& text, const std::string& part) {
  int64_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(RoundTicks, EncloseTheData) {
  EXPECT_EQ(round_ticks(0, 10, 5), (Ticks{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(round_ticks(4.9, 9.1, 6), (Ticks{4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(round_ticks(1, 1000, 8), (Ticks{0, 200, 400, 600, 800, 1000}));
  EXPECT_EQ(round_ticks(-3, 3, 3), (Ticks{-4, -2, 0, 2, 4}));
}

TEST(RoundTicks, StandOnBoundsThatARoundingErrorMisses) {
  const Ticks ticks = round_ticks(0.1 + 0.2, 0.6, 3);
  EXPECT_EQ(ticks.size(), 4u);
  EXPECT_NEAR(ticks.front(), 0.3, 1e-12);
}

TEST(RoundTicks, DrawSomethingFromNothing) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_GE(round_ticks(5, 5, 4).size(), 2u);
  EXPECT_GE(round_ticks(0, 0, 4).size(), 2u);
  EXPECT_GE(round_ticks(-2, -2, 4).size(), 2u);
  EXPECT_GE(round_ticks(infinity, -infinity, 4).size(), 2u);
}

TEST(TickText, HasTheDecimalsThatTheStepNeeds) {
  EXPECT_EQ(tick_text(5, 1), "5");
  EXPECT_EQ(tick_text(5, 0.5), "5.0");
  EXPECT_EQ(tick_text(0.05, 0.01), "0.05");
  EXPECT_EQ(tick_text(12000, 2000), "12,000");
  EXPECT_EQ(tick_text(-1234567, 1), "-1,234,567");
}

TEST(Svg, EscapesText) {
  Svg svg(10, 10);
  svg.text({0, 0}, "a < b & \"c\" > d");
  EXPECT_NE(svg.str().find("a &lt; b &amp; &quot;c&quot; &gt; d"), std::string::npos);
}

TEST(Svg, IsACompleteFile) {
  const std::string picture = Svg(30, 20).str();
  EXPECT_TRUE(picture.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"30\" height=\"20\""));
  EXPECT_TRUE(picture.ends_with("</svg>\n"));
}

LineChart chart_of(std::vector<Point> points, bool markers = false) {
  LineChart chart;
  chart.title = "title";
  chart.x_label = "step";
  chart.y_label = "loss";
  chart.series.push_back(
      {.name = "training", .points = std::move(points), .color = "#123456", .markers = markers});
  return chart;
}

TEST(RenderLineChart, DrawsEverySeriesWithItsName) {
  LineChart chart = chart_of({{0, 1}, {1, 2}, {2, 0}});
  chart.series.push_back(
      {.name = "held out", .points = {{0, 1}, {2, 1.5}}, .color = "#abcdef", .markers = true});
  const std::string picture = render(chart);
  EXPECT_EQ(count(picture, "<polyline"), 2);
  EXPECT_EQ(count(picture, ">training<"), 1);
  EXPECT_EQ(count(picture, ">held out<"), 1);
  EXPECT_EQ(count(picture, ">1.50<"), 1);       // the last marked value
  EXPECT_EQ(count(picture, "<circle"), 2 + 1);  // two points, and the legend's
}

TEST(RenderLineChart, PutsPointsOnTheirTicks) {
  const std::string picture = render(chart_of({{0, 0}, {10, 4}}));
  // The plot reaches from (64, 424) to (796, 100).
  EXPECT_NE(picture.find("<polyline points=\"64,424 796,100 \""), std::string::npos) << picture;
}

TEST(RenderLineChart, LeavesGapsWhereThereIsNoNumber) {
  const double nan = std::nan("");
  EXPECT_EQ(count(render(chart_of({{0, 1}, {1, 2}, {2, nan}, {3, 1}, {4, 2}})), "<polyline"), 2);
  EXPECT_EQ(render(chart_of({{0, nan}})).find("nan"), std::string::npos);
  EXPECT_EQ(render(chart_of({})).find("inf"), std::string::npos);
}

TEST(RenderLineChart, ThinsManyPointsButKeepsThePeak) {
  std::vector<Point> points;
  for (int i = 0; i <= 100000; ++i)
    points.push_back({static_cast<double>(i), i == 43210 ? 10.0 : std::sin(i)});
  const std::string picture = render(chart_of(points));
  EXPECT_LT(picture.size(), 60000u);
  EXPECT_NE(picture.find(",100 "), std::string::npos);  // y = 10 is the top
}

}  // namespace
}  // namespace tapehead
