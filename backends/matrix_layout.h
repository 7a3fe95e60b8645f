// How a product's operands lie in memory, as libraries take them: strided matrices, and batches of them.
#pragma once

#include <algorithm>
#include <optional>

#include "tapehead/core/tensor.h"

namespace tapehead {

/// Rows one after the other, or columns if `transposed`: each dense, and `leading` elements from the next.
struct MatrixLayout {
  bool transposed;
  int64_t leading;  ///< at least 1, and the length of a row (or column)

  /// How far apart elements are that stand below each other, or beside each other.
  int64_t down() const { return transposed ? 1 : leading; }
  int64_t along() const { return transposed ? leading : 1; }
};

/// A matrix by its first element.
template <class T>
struct MatrixAt {
  const T* first;
  MatrixLayout layout;
};

/// The layout of x's last two dimensions, by rows where both would do. None if neither dimension is dense, or
/// if rows (columns) overlap. A dimension of size 1 may have any stride, and gets the least.
inline std::optional<MatrixLayout> matrix_layout(const Tensor& x) {
  const int64_t rows = x.size(-2), columns = x.size(-1);
  const int64_t down = x.strides()[static_cast<size_t>(x.dim() - 2)], along = x.strides().back();
  const auto leading = [](int64_t step, int64_t length, int64_t lines) {
    return std::max({lines == 1 ? 0 : step, length, int64_t{1}});
  };
  if ((along == 1 || columns == 1) && (down >= columns || rows == 1))
    return MatrixLayout{false, leading(down, columns, rows)};
  if ((down == 1 || rows == 1) && (along >= rows || columns == 1))
    return MatrixLayout{true, leading(along, rows, columns)};
  return std::nullopt;
}

/// The dimensions before the last two.
inline Shape batch_shape(const Tensor& x) {
  return Shape(std::vector<int64_t>(x.shape().begin(), x.shape().end() - 2));
}

/// Strides from matrix to matrix of x, read as a batch of shape `batch`: 0 where it has one for all.
inline Strides batch_strides(const Tensor& x, const Shape& batch) {
  return broadcast_strides(batch_shape(x), Strides(x.strides().begin(), x.strides().end() - 2), batch);
}

}  // namespace tapehead
