// Pictures as text: a small SVG canvas, scales with round ticks, and a line chart made of both.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tapehead {

struct Point {
  double x, y;
};

/// Round numbers (1, 2 or 5 times a power of ten apart) from the last at or below `low` to the first at or
/// above `high`, about `count` of them. Equal or non-finite bounds are widened to something drawable.
std::vector<double> round_ticks(double low, double high, int count);

/// A tick as text: the decimals that the distance `step` between ticks needs, thousands set apart by commas.
std::string tick_text(double value, double step);

/// Maps the data's range [low, high] to the picture's [from, to], in pixels.
struct Scale {
  double low, high, from, to;

  double operator()(double value) const { return from + (value - low) / (high - low) * (to - from); }
};

struct TextStyle {
  double size = 13;  ///< pixels
  const char* color = "#333";
  const char* anchor = "start";  ///< which end of the text stands at the given point: start, middle, end
  bool bold = false;
};

/// A picture in the making; coordinates in pixels from the top left corner. Later shapes cover earlier ones.
class Svg {
 public:
  Svg(int width, int height);

  void line(Point from, Point to, std::string_view color, double width = 1);
  void polyline(const std::vector<Point>& points, std::string_view color, double width);
  void circle(Point center, double radius, std::string_view color);
  void rectangle(Point top_left, double width, double height, std::string_view color);
  void text(Point at, std::string_view text, const TextStyle& style = {});

  /// The whole file.
  std::string str() const;

 private:
  int width_, height_;
  std::string body_;
};

struct Series {
  std::string name;           ///< for the legend
  std::vector<Point> points;  ///< x ascending; a y that is no finite number leaves a gap
  const char* color;
  double width = 1.5;    ///< of the line, in pixels
  bool markers = false;  ///< a dot at every point, and the last one's value beside it
};

struct LineChart {
  std::string title;
  std::string subtitle;
  std::string x_label, y_label;  ///< with units
  std::vector<Series> series;    ///< later ones are drawn over earlier ones
};

/// The chart as an SVG file of 860 × 480 pixels that needs nothing outside itself.
std::string render(const LineChart& chart);

}  // namespace tapehead
