#include "tapehead/tools/report/thinned_series.h"

#include <cmath>

namespace tapehead {

int64_t ThinnedSeries::stretch_of(const Extremes& extremes) const {
  return static_cast<int64_t>(std::floor(extremes.low.x / width_));
}

void ThinnedSeries::add(Point point) {
  if (!std::isfinite(point.x) || !std::isfinite(point.y) || (!kept_.empty() && point.x <= last_.x)) return;
  last_ = point;
  const Extremes alone = {point, point};
  if (kept_.empty() || stretch_of(kept_.back()) != stretch_of(alone)) {
    kept_.push_back(alone);
    while (std::ssize(kept_) > stretches_) widen();
  } else {
    if (point.y < kept_.back().low.y) kept_.back().low = point;
    if (point.y > kept_.back().high.y) kept_.back().high = point;
  }
}

void ThinnedSeries::widen() {
  width_ *= 2;
  std::vector<Extremes> merged;
  for (const Extremes& e : kept_) {
    if (merged.empty() || stretch_of(merged.back()) != stretch_of(e)) {
      merged.push_back(e);
    } else {
      if (e.low.y < merged.back().low.y) merged.back().low = e.low;
      if (e.high.y > merged.back().high.y) merged.back().high = e.high;
    }
  }
  kept_ = std::move(merged);
}

std::vector<Point> ThinnedSeries::points() const {
  std::vector<Point> points;
  for (const auto& [low, high] : kept_) {
    points.push_back(low.x <= high.x ? low : high);
    if (low.x != high.x) points.push_back(low.x <= high.x ? high : low);
  }
  if (!kept_.empty() && points.back().x < last_.x) points.push_back(last_);
  return points;
}

}  // namespace tapehead
