// A sum of f64 numbers that is as good as if it had been rounded once.
#pragma once

#include <cmath>

namespace tapehead {

/// Keeps what each addition rounds away, and adds it at the end (Neumaier, 1974). An infinity or a
/// NaN stays what it is.
class CompensatedSum {
 public:
  constexpr void add(double x) {
    const double next = sum_ + x;
    lost_ += std::abs(sum_) >= std::abs(x) ? (sum_ - next) + x : (x - next) + sum_;
    sum_ = next;
  }
  constexpr void add(const CompensatedSum& other) {
    add(other.sum_);
    lost_ += other.lost_;
  }
  constexpr double value() const { return std::isfinite(lost_) ? sum_ + lost_ : sum_; }

 private:
  double sum_ = 0, lost_ = 0;
};

}  // namespace tapehead
