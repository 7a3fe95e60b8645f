// Loops over strided operands of one shape: dimensions are merged where all operands allow it, and the
// innermost run is handed out whole, so that a kernel writes one plain loop over pointers and steps.
#pragma once

#include <array>
#include <vector>

#include "tapehead/core/parallel.h"
#include "tapehead/core/tensor.h"

namespace tapehead {

/// A loop over `shape` with K operands, each with its strides in elements.
template <size_t K>
class NdLoop {
 public:
  NdLoop(const Shape& shape, const std::array<Strides, K>& strides) {
    // From the innermost outwards: a dimension joins the one inside if every operand steps over it densely.
    for (int64_t axis = shape.dim() - 1; axis >= 0; --axis) {
      const int64_t size = shape[axis];
      count_ *= size;
      if (size == 1) continue;
      std::array<int64_t, K> step;
      for (size_t k = 0; k < K; ++k) step[k] = strides[k][static_cast<size_t>(axis)];
      bool joins = !sizes_.empty();
      for (size_t k = 0; joins && k < K; ++k) joins = step[k] == steps_.back()[k] * sizes_.back();
      if (joins) {
        sizes_.back() *= size;
      } else {
        sizes_.push_back(size);
        steps_.push_back(step);
      }
    }
    if (sizes_.empty()) {
      sizes_.push_back(1);
      steps_.push_back({});
    }
  }

  int64_t count() const { return count_; }
  /// Steps of the innermost run, by operand.
  const std::array<int64_t, K>& steps() const { return steps_[0]; }

  /// Calls f(offsets, n) for runs that cover the elements [begin, end) in row-major order; operand k of
  /// element i of a run stands at offsets[k] + i * steps()[k].
  template <class F>
  void range(int64_t begin, int64_t end, F&& f) const {
    std::array<int64_t, K> offsets;
    while (begin < end) {
      int64_t rest = begin / sizes_[0];
      const int64_t at = begin % sizes_[0];
      const int64_t n = std::min(end - begin, sizes_[0] - at);
      for (size_t k = 0; k < K; ++k) offsets[k] = at * steps_[0][k];
      for (size_t d = 1; d < sizes_.size(); ++d) {
        const int64_t index = rest % sizes_[d];
        rest /= sizes_[d];
        for (size_t k = 0; k < K; ++k) offsets[k] += index * steps_[d][k];
      }
      f(offsets, n);
      begin += n;
    }
  }

  /// The same for all elements: in parallel unless `serial`, where a run may be cut in two.
  template <class F>
  void run(F&& f, bool serial = false) const {
    if (serial) {
      range(0, count_, f);
    } else {
      parallel_for(count_, kGrain, [&](int64_t begin, int64_t end) { range(begin, end, f); });
    }
  }

 private:
  int64_t count_ = 1;
  std::vector<int64_t> sizes_;                 // innermost first
  std::vector<std::array<int64_t, K>> steps_;  // of each dimension, by operand
};

}  // namespace tapehead
