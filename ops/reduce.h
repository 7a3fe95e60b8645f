// Sums, means and maxima along axes. Floating dtypes; the result has x's dtype.
//
// `axes` are the axes to reduce over, negative ones counted from the back; none means all. With `keepdim`
// the reduced ones stay, with size 1. Every function throws ValueError on an axis out of range or
// given twice, TypeError on integers.
#pragma once

#include "tapehead/core/view.h"

namespace tapehead {

/// Summed in f64, rounded once. The sum of nothing is 0.
Tensor sum(const Tensor& x, const std::vector<int64_t>& axes = {}, bool keepdim = false);

/// sum / number of elements; the mean of nothing is NaN.
Tensor mean(const Tensor& x, const std::vector<int64_t>& axes = {}, bool keepdim = false);

/// The largest element; a NaN wins. Elements that tie for it share the gradient equally (torch.amax's rule).
/// Throws ValueError if there is nothing along the axes.
Tensor max(const Tensor& x, const std::vector<int64_t>& axes = {}, bool keepdim = false);

}  // namespace tapehead
