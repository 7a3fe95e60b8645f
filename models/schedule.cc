#include "tapehead/models/schedule.h"

#include <cmath>
#include <numbers>

namespace tapehead {

double CosineSchedule::at(int64_t step) const {
  const double s = static_cast<double>(step), w = static_cast<double>(warmup), n = static_cast<double>(steps);
  if (step <= warmup) return peak * s / w;
  if (step >= steps) return minimum;
  return minimum + (peak - minimum) * (1 + std::cos(std::numbers::pi * (s - w) / (n - w))) / 2;
}

}  // namespace tapehead
