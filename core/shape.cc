#include "tapehead/core/shape.h"

#include <fmt/format.h>

#include <algorithm>

namespace tapehead {

Shape::Shape(std::vector<int64_t> sizes) : sizes_(std::move(sizes)) {
  bool empty = false;
  for (int64_t s : sizes_) {
    if (s < 0) fail<ValueError>("a shape's sizes are >= 0, not {}", *this);
    empty |= s == 0;
  }
  // Sizes of 0 are left out: an empty shape's strides, too, are products that must fit.
  for (int64_t s : sizes_) {
    if (s > 0 && __builtin_mul_overflow(numel_, s, &numel_))
      fail<ValueError>("a tensor of shape {} has too many elements", *this);
  }
  if (empty) numel_ = 0;
}

int64_t Shape::normalize_axis(int64_t axis, std::string_view op) const {
  const int64_t n = dim();
  check<ValueError>(-n <= axis && axis < n, "[{}] axis {} is out of range for shape {}", op, axis, *this);
  return axis < 0 ? axis + n : axis;
}

Strides Shape::contiguous_strides() const {
  Strides strides(sizes_.size());
  int64_t stride = 1;
  for (size_t i = sizes_.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes_[i], 1);
  }
  return strides;
}

Shape Shape::with(int64_t axis, int64_t size) const {
  std::vector<int64_t> sizes = sizes_;
  sizes[static_cast<size_t>(normalize_axis(axis, "with"))] = size;
  return Shape(std::move(sizes));
}

Shape Shape::without(int64_t axis) const {
  std::vector<int64_t> sizes = sizes_;
  sizes.erase(sizes.begin() + normalize_axis(axis, "without"));
  return Shape(std::move(sizes));
}

Shape Shape::insert(int64_t axis, int64_t size, std::string_view op) const {
  const int64_t n = dim() + 1;
  check<ValueError>(-n <= axis && axis < n, "[{}] axis {} is out of range to insert into shape {}", op, axis,
                    *this);
  std::vector<int64_t> sizes = sizes_;
  sizes.insert(sizes.begin() + (axis < 0 ? axis + n : axis), size);
  return Shape(std::move(sizes));
}

std::string Shape::str() const {
  if (sizes_.size() == 1) return fmt::format("({},)", sizes_[0]);
  return fmt::format("({})", fmt::join(sizes_, ", "));
}

Shape broadcast(const Shape& a, const Shape& b, std::string_view op) {
  const int64_t n = std::max(a.dim(), b.dim());
  std::vector<int64_t> sizes(static_cast<size_t>(n));
  for (int64_t i = 1; i <= n; ++i) {
    const int64_t sa = i <= a.dim() ? a[-i] : 1;
    const int64_t sb = i <= b.dim() ? b[-i] : 1;
    check<ValueError>(sa == sb || sa == 1 || sb == 1,
                      "[{}] shapes {} and {} do not broadcast: size {} meets {}", op, a, b, sa, sb);
    sizes[static_cast<size_t>(n - i)] = sa == 1 ? sb : sa;
  }
  return Shape(std::move(sizes));
}

bool broadcasts_to(const Shape& shape, const Shape& target) {
  if (shape.dim() > target.dim()) return false;
  for (int64_t i = 1; i <= shape.dim(); ++i) {
    if (shape[-i] != target[-i] && shape[-i] != 1) return false;
  }
  return true;
}

Strides broadcast_strides(const Shape& shape, const Strides& strides, const Shape& target) {
  check<ValueError>(broadcasts_to(shape, target), "shape {} does not broadcast to {}", shape, target);
  Strides result(static_cast<size_t>(target.dim()), 0);
  for (int64_t i = 1; i <= shape.dim(); ++i) {
    if (shape[-i] == target[-i])
      result[static_cast<size_t>(target.dim() - i)] = strides[static_cast<size_t>(shape.dim() - i)];
  }
  return result;
}

}  // namespace tapehead
