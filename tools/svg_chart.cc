#include "tapehead/tools/svg_chart.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tapehead/tools/format.h"

namespace tapehead {

namespace {

constexpr int kWidth = 860, kHeight = 480;
// The plot's place in the picture. Left of it are the y ticks, right of it the values of last points.
constexpr double kLeft = 64, kRight = kWidth - 64, kTop = 100, kBottom = kHeight - 56;
constexpr const char* kInk = "#222";
constexpr const char* kFaint = "#6b6b6b";
constexpr const char* kGrid = "#e6e6e6";

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

/// Pixels to a tenth, without a trailing ".0".
std::string px(double value) {
  std::string text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

/// Runs of finite points, each thinned to the lowest and highest of every pixel column: what one would see.
std::vector<std::vector<Point>> visible_runs(const std::vector<Point>& points, const Scale& x,
                                             const Scale& y) {
  std::vector<std::vector<Point>> runs;
  std::vector<Point> column;
  const auto flush = [&] {
    if (column.empty()) return;
    auto [low, high] =
        std::minmax_element(column.begin(), column.end(), [](Point a, Point b) { return a.y < b.y; });
    if (high < low) std::swap(low, high);
    runs.back().push_back(*low);
    if (low != high) runs.back().push_back(*high);
    column.clear();
  };
  bool gap = true;
  for (const Point& p : points) {
    if (!std::isfinite(p.x) || !std::isfinite(p.y)) {
      flush();
      gap = true;
      continue;
    }
    const Point at = {x(p.x), y(p.y)};
    if (gap) runs.emplace_back();
    if (!column.empty() && std::floor(column.front().x) != std::floor(at.x)) flush();
    column.push_back(at);
    gap = false;
  }
  flush();
  return runs;
}

}  // namespace

std::vector<double> round_ticks(double low, double high, int count) {
  if (!std::isfinite(low) || !std::isfinite(high)) low = 0, high = 1;
  if (low == high) high = low + (low == 0 ? 1 : std::abs(low));
  const double raw = (high - low) / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  const double multiple = raw / power;
  const double step = power * (multiple <= 1 ? 1 : multiple <= 2 ? 2 : multiple <= 5 ? 5 : 10);
  // Bounds that miss a tick by a rounding error stand on it.
  const auto first = static_cast<int64_t>(std::floor(low / step + 1e-9));
  const auto last = static_cast<int64_t>(std::ceil(high / step - 1e-9));
  std::vector<double> ticks;
  for (int64_t i = first; i <= last; ++i) ticks.push_back(static_cast<double>(i) * step);
  return ticks;
}

std::string tick_text(double value, double step) {
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  return with_thousands(fmt::format("{:.{}f}", value, decimals));
}

Svg::Svg(int width, int height) : width_(width), height_(height) {}

void Svg::line(Point from, Point to, std::string_view color, double width) {
  body_ += fmt::format(R"(<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="{}" stroke-width="{}"/>)"
                       "\n",
                       px(from.x), px(from.y), px(to.x), px(to.y), color, px(width));
}

void Svg::polyline(const std::vector<Point>& points, std::string_view color, double width) {
  body_ += R"(<polyline points=")";
  for (const Point& p : points) body_ += fmt::format("{},{} ", px(p.x), px(p.y));
  body_ += fmt::format(R"(" fill="none" stroke="{}" stroke-width="{}" stroke-linejoin="round"/>)"
                       "\n",
                       color, px(width));
}

void Svg::circle(Point center, double radius, std::string_view color) {
  body_ += fmt::format(R"(<circle cx="{}" cy="{}" r="{}" fill="{}"/>)"
                       "\n",
                       px(center.x), px(center.y), px(radius), color);
}

void Svg::rectangle(Point top_left, double width, double height, std::string_view color) {
  body_ += fmt::format(R"(<rect x="{}" y="{}" width="{}" height="{}" fill="{}"/>)"
                       "\n",
                       px(top_left.x), px(top_left.y), px(width), px(height), color);
}

void Svg::text(Point at, std::string_view text, const TextStyle& style) {
  body_ += fmt::format(R"(<text x="{}" y="{}" font-size="{}" fill="{}" text-anchor="{}"{}>{}</text>)"
                       "\n",
                       px(at.x), px(at.y), px(style.size), style.color, style.anchor,
                       style.bold ? R"( font-weight="600")" : "", escape(text));
}

std::string Svg::str() const {
  return fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}")"
      R"( font-family="Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif">)"
      "\n{2}</svg>\n",
      width_, height_, body_);
}

std::string render(const LineChart& chart) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Point low = {kInfinity, kInfinity}, high = {-kInfinity, -kInfinity};
  for (const Series& s : chart.series) {
    for (const Point& p : s.points) {
      if (!std::isfinite(p.x) || !std::isfinite(p.y)) continue;
      low = {std::min(low.x, p.x), std::min(low.y, p.y)};
      high = {std::max(high.x, p.x), std::max(high.y, p.y)};
    }
  }
  const std::vector<double> x_ticks = round_ticks(low.x, high.x, 8), y_ticks = round_ticks(low.y, high.y, 6);
  const Scale x = {x_ticks.front(), x_ticks.back(), kLeft, kRight};
  const Scale y = {y_ticks.front(), y_ticks.back(), kBottom, kTop};
  const double x_step = x_ticks[1] - x_ticks[0], y_step = y_ticks[1] - y_ticks[0];

  Svg svg(kWidth, kHeight);
  svg.rectangle({0, 0}, kWidth, kHeight, "#fff");
  svg.text({24, 34}, chart.title, {.size = 19, .color = kInk, .bold = true});
  svg.text({24, 56}, chart.subtitle, {.color = kFaint});

  for (const double tick : y_ticks) {
    svg.line({kLeft, y(tick)}, {kRight, y(tick)}, kGrid);
    svg.text({kLeft - 8, y(tick) + 4}, tick_text(tick, y_step),
             {.size = 12, .color = kFaint, .anchor = "end"});
  }
  for (const double tick : x_ticks) {
    svg.line({x(tick), kBottom}, {x(tick), kBottom + 5}, kFaint);
    svg.text({x(tick), kBottom + 20}, tick_text(tick, x_step),
             {.size = 12, .color = kFaint, .anchor = "middle"});
  }
  svg.line({kLeft, kBottom}, {kRight, kBottom}, kFaint);
  svg.text({24, 84}, chart.y_label, {.color = kInk});
  svg.text({kRight, kBottom + 42}, chart.x_label, {.color = kInk, .anchor = "end"});

  for (const Series& s : chart.series) {
    for (const auto& run : visible_runs(s.points, x, y)) svg.polyline(run, s.color, s.width);
    if (!s.markers) continue;
    const Point* last = nullptr;
    for (const Point& p : s.points) {
      if (!std::isfinite(p.x) || !std::isfinite(p.y)) continue;
      svg.circle({x(p.x), y(p.y)}, 3.5, s.color);
      last = &p;
    }
    if (last) {
      svg.text({x(last->x) + 9, y(last->y) + 4.5}, fmt::format("{:.2f}", last->y),
               {.color = s.color, .bold = true});
    }
  }

  // The legend, a row that ends at the plot's right edge. 13-pixel text is some 7 pixels a letter.
  double right = kRight;
  for (auto s = chart.series.rbegin(); s != chart.series.rend(); ++s) {
    svg.text({right, 84}, s->name, {.color = kInk, .anchor = "end"});
    right -= 7.0 * static_cast<double>(s->name.size()) + 6;
    svg.line({right - 24, 79.5}, {right, 79.5}, s->color, std::max(s->width, 2.0));
    if (s->markers) svg.circle({right - 12, 79.5}, 3.5, s->color);
    right -= 24 + 22;
  }
  return svg.str();
}

}  // namespace tapehead
