// What every backend's pass over a row of logits is about: the sums that its first reading finds, and the
// loss and the gradient that follow from them. Constexpr is what lets code of a device call them.
//
// Of a row with C classes: z_c are its logits after scale and softcap, p_c = exp(z_c) / Σ exp(z), t is the
// target class, and the row's loss is Σ_c a_c · -log p_c + b · -log p_t, where a_c and b are the factors that
// target, smoothing and weights make.
#pragma once

#include <cmath>
#include <cstdint>

namespace tapehead {

/// `reference` is the row's largest z, or 0 if that is -inf. The target class is kept apart from the other
/// classes, so that a confident row's 1 - p and log(1 + others) keep all their digits.
template <class W>
struct RowSums {
  W reference = 0;
  W z_target = 0;
  int64_t first_largest = 0;
  double others = 0;      // Σ exp(z_c - reference) without the target class
  double target = 0;      // exp(z_t - reference); 0 for probabilities
  double factor_sum = 0;  // Σ a_c
  double factor_dot = 0;  // Σ a_c · (z_c - reference), factors of 0 left out
  double exp_dot = 0;     // Σ exp(z_c - reference) · (z_c - reference), for the entropy

  constexpr double exp_sum() const { return others + target; }
  constexpr double log_sum() const { return target == 1 ? std::log1p(others) : std::log(exp_sum()); }
  constexpr double lse() const { return static_cast<double>(reference) + log_sum(); }

  /// Moves what was summed against the old reference to a new one.
  constexpr void move_reference(W to) {
    const double step = static_cast<double>(to) - static_cast<double>(reference);
    const double shrink = std::exp(-step);
    exp_dot = shrink * exp_dot - (others > 0 ? step * shrink * others : 0);
    others *= shrink;
    if (factor_sum != 0) factor_dot -= factor_sum * step;
    reference = to;
  }

  /// Adds the target class, last.
  constexpr void add_target(W z) {
    z_target = z;
    const double distance = static_cast<double>(z) - static_cast<double>(reference);
    target = std::exp(distance);
    if (target > 0) exp_dot += target * distance;
  }
};

/// What is told of a row, with its two logarithms taken once.
struct RowStatistics {
  double reference, log_sum, log_p_target;

  template <class W>
  constexpr explicit RowStatistics(const RowSums<W>& sums)
      : reference(static_cast<double>(sums.reference)),
        log_sum(sums.log_sum()),
        log_p_target(static_cast<double>(sums.z_target) - reference - log_sum) {}

  constexpr double lse() const { return reference + log_sum; }

  /// scale · (Σ_c a_c · -log p_c + b · -log p_t) + z_scale · lse².
  template <class W>
  constexpr double loss(const RowSums<W>& sums, double b, double scale, double z_scale) const {
    double value = 0;
    if (sums.factor_sum != 0) value += sums.factor_sum * log_sum - sums.factor_dot;
    if (b != 0) value -= b * log_p_target;
    if (log_sum != log_sum) value = log_sum;  // NaN, also where all factors are 0
    value *= scale;
    if (z_scale != 0) value += z_scale * lse() * lse();
    return value;
  }

  template <class W>
  constexpr double entropy(const RowSums<W>& sums) const {
    return log_sum - sums.exp_dot / sums.exp_sum();
  }
};

/// slope(z) = d z / d u of z = cap · tanh(u / cap), 1 - (z / cap)²; 1 without a cap (0),
/// also where z is -inf.
template <class W>
constexpr W softcap_slope(W z, W cap) {
  return cap > 0 ? 1 - z / cap * (z / cap) : W{1};
}

/// d loss / d z_c = of_p · p_c - scale · a_c, minus scale · b at the target, with
/// of_p = scale · (Σ a + b) + 2 · z_scale · lse. From z to the logits as given: slope(z) · logit_scale.
struct GradientFactors {
  double scale, b, z_slope, of_p;

  template <class W>
  constexpr GradientFactors(const RowSums<W>& sums, double b_, double scale_, double z_scale)
      : scale(scale_),
        b(b_),
        z_slope(z_scale != 0 ? 2 * z_scale * sums.lse() : 0),
        of_p(scale * (sums.factor_sum + b) + z_slope) {}

  /// At the target, whose a_c is `own`: (Σ a + b) · p - own - b with p = target / (target + others), without
  /// the cancellation of p - 1.
  template <class W>
  constexpr double at_target(const RowSums<W>& sums, double own) const {
    return scale * ((sums.factor_sum * sums.target - b * sums.others) / sums.exp_sum() - own) +
           z_slope * sums.target / sums.exp_sum();
  }
};

}  // namespace tapehead
