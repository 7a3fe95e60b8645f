#include "tapehead/models/step_guard.h"

#include <algorithm>
#include <cmath>

namespace tapehead {

static constexpr double kDecay = 0.98;

void RunningStatistics::add(double x) {
  ++count;
  mean_sum = kDecay * mean_sum + (1 - kDecay) * x;
  square_sum = kDecay * square_sum + (1 - kDecay) * x * x;
}

static double weight(int64_t count) { return 1 - std::pow(kDecay, static_cast<double>(count)); }

double RunningStatistics::mean() const { return mean_sum / weight(count); }

double RunningStatistics::deviation() const {
  const double m = mean();
  return std::sqrt(std::max(square_sum / weight(count) - m * m, 0.0));
}

double RunningStatistics::z_score(double x) const {
  // A series that stands still has no scale of its own: a millionth of its size is taken for noise.
  return (x - mean()) / std::max(deviation(), 1e-6 * std::abs(mean()));
}

bool StepGuard::skips(double step_loss, double gradient_norm, double limit) {
  const bool leaps = limit > 0 && loss.count >= kFirst &&
                     (loss.z_score(step_loss) > limit || norm.z_score(gradient_norm) > limit);
  if (leaps && in_a_row < kMostInARow) {
    ++in_a_row;
    return true;
  }
  if (leaps) loss = norm = {};
  in_a_row = 0;
  loss.add(step_loss);
  norm.add(gradient_norm);
  return false;
}

}  // namespace tapehead
