// A curve of any length, as much of it as one can see.
#pragma once

#include <cstdint>
#include <vector>

#include "tapehead/tools/svg_chart.h"

namespace tapehead {

/// Points by rising x, of which the lowest and the highest of every stretch of x are kept. Stretches double
/// in width whenever there are too many, so memory is bounded however many points come.
class ThinnedSeries {
 public:
  /// Keeps at most 2 · `stretches` points and the last.
  explicit ThinnedSeries(int64_t stretches = 1000) : stretches_(stretches) {}

  /// A point whose x is not above the last one's, or that is not finite, is left out.
  void add(Point point);

  /// By rising x.
  std::vector<Point> points() const;

 private:
  struct Extremes {
    Point low, high;
  };

  int64_t stretch_of(const Extremes& extremes) const;
  void widen();

  int64_t stretches_;
  double width_ = 1;  // of a stretch, in x
  std::vector<Extremes> kept_;
  Point last_ = {};
};

}  // namespace tapehead
