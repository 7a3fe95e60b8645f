// Shapes, strides and NumPy's broadcasting rule. Sizes, strides and counts are in elements, int64.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "tapehead/core/error.h"

namespace tapehead {

/// Distance between neighbours along each dimension, in elements; 0 along a broadcast one.
using Strides = std::vector<int64_t>;

/// The sizes of a tensor's dimensions; () is a scalar. Every size is >= 0.
class Shape {
 public:
  Shape() = default;
  /// Throws ValueError for a negative size, or if the number of elements does not fit an int64.
  Shape(std::initializer_list<int64_t> sizes) : Shape(std::vector<int64_t>(sizes)) {}
  explicit Shape(std::vector<int64_t> sizes);

  /// Number of dimensions.
  int64_t dim() const { return static_cast<int64_t>(sizes_.size()); }
  /// Number of elements: the product of all sizes, 1 for a scalar.
  int64_t numel() const { return numel_; }

  /// Size along `axis`; negative axes count from the back. Throws ValueError out of range.
  int64_t operator[](int64_t axis) const { return sizes_[static_cast<size_t>(normalize_axis(axis, "size"))]; }
  /// `axis` in [0, dim()). Throws ValueError that begins with [op] out of range.
  int64_t normalize_axis(int64_t axis, std::string_view op) const;

  /// Strides of a dense row-major tensor of this shape.
  Strides contiguous_strides() const;

  /// This shape with the size along `axis` replaced; without `axis`; with `size` inserted before `axis`.
  /// Throw ValueError out of range; insert's begins with [op].
  Shape with(int64_t axis, int64_t size) const;
  Shape without(int64_t axis) const;
  Shape insert(int64_t axis, int64_t size, std::string_view op = "insert") const;

  auto begin() const { return sizes_.begin(); }
  auto end() const { return sizes_.end(); }
  const std::vector<int64_t>& sizes() const { return sizes_; }
  bool operator==(const Shape& other) const { return sizes_ == other.sizes_; }

  /// "(2, 3)".
  std::string str() const;

 private:
  std::vector<int64_t> sizes_;
  int64_t numel_ = 1;
};

/// The shape that both broadcast to: aligned at the last dimension, equal sizes or 1 (NumPy's broadcasting).
/// Throws ValueError that begins with [op] and states both shapes.
Shape broadcast(const Shape& a, const Shape& b, std::string_view op);

/// Whether a tensor of `shape` can be read as `target`: NumPy's rule, in this one direction.
bool broadcasts_to(const Shape& shape, const Shape& target);

/// Strides that read a tensor of `shape` and `strides` as `target`, 0 along broadcast dimensions.
/// Throws ValueError unless `shape` broadcasts to `target`.
Strides broadcast_strides(const Shape& shape, const Strides& strides, const Shape& target);

}  // namespace tapehead

template <>
struct fmt::formatter<tapehead::Shape> : tapehead::PlainFormatter {
  auto format(const tapehead::Shape& s, format_context& ctx) const { return write(s.str(), ctx); }
};
