// Views: the same elements under another shape. All are recorded, and share storage unless said otherwise.
// Axes count from 0, negative ones from the back. Every function throws ValueError that states the shapes.
#pragma once

#include "tapehead/core/tape.h"

namespace tapehead {

/// x under `shape`, in row-major order; one size may be -1 (computed). A copy where strides allow no view.
Tensor reshape(const Tensor& x, std::vector<int64_t> sizes);

/// Axes a and b swapped.
Tensor transpose(const Tensor& x, int64_t a, int64_t b);

/// Dimension i of the result is dimension order[i] of x.
Tensor permute(const Tensor& x, const std::vector<int64_t>& order);

/// Elements begin, begin + step, ... below end along `axis`;
/// begin and end may be negative and are clamped, step >= 1.
Tensor slice(const Tensor& x, int64_t axis, int64_t begin, int64_t end, int64_t step = 1);

/// The index-th sub-tensor along `axis`, without that dimension; index may be negative.
Tensor select(const Tensor& x, int64_t axis, int64_t index);

/// x repeated along dimensions of size 1 and along new leading ones, without a copy.
Tensor expand(const Tensor& x, const Shape& shape);

/// Without the dimension `axis`, of size 1; with one inserted before `axis`.
Tensor squeeze(const Tensor& x, int64_t axis);
Tensor unsqueeze(const Tensor& x, int64_t axis);

/// x's elements, dense in row-major order: x itself if they are so already, else a copy.
Tensor contiguous(const Tensor& x);

/// x in another floating dtype, rounded to nearest even: a copy, but for the dtype that it has already.
/// Throws TypeError if x requires a gradient and dtype is an integer.
Tensor cast(const Tensor& x, DType dtype);

}  // namespace tapehead
