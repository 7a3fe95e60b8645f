// How far one tensor is from another.
#pragma once

#include <algorithm>
#include <cmath>

#include "tapehead/core/tensor.h"

namespace tapehead {

/// ‖actual - expected‖ / ‖expected‖ over the elements begin <= i < end; infinite if the shapes differ.
inline double relative_error(const Tensor& actual, const Tensor& expected, size_t begin = 0,
                             size_t end = SIZE_MAX) {
  if (actual.shape() != expected.shape()) return INFINITY;
  const auto a = actual.to_vector<double>(), e = expected.to_vector<double>();
  double difference = 0, norm = 0;
  for (size_t i = begin; i < std::min(end, e.size()); ++i) {
    difference += (a[i] - e[i]) * (a[i] - e[i]);
    norm += e[i] * e[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace tapehead
