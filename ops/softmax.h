// Softmax and its logarithm.
#pragma once

#include "tapehead/core/view.h"

namespace tapehead {

/// exp(x) / Σ exp(x) along `axis`, shifted by the largest x, so that nothing overflows. Shape and dtype of x,
/// a floating one. A slice that holds a NaN, a +∞, or only -∞ becomes NaN; others are untouched by it. Throws
/// ValueError on an axis out of range, TypeError on integers.
Tensor softmax(const Tensor& x, int64_t axis);

/// log(softmax(x, axis)), without forming the softmax: x - max - log Σ exp(x - max).
Tensor log_softmax(const Tensor& x, int64_t axis);

}  // namespace tapehead
