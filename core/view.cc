#include "tapehead/core/view.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace tapehead {

// Strides that show x's elements, in row-major order, under `shape` (of as many elements); empty if none do.
// Dimensions of x are merged where they lie densely behind one another, and each such run is split anew.
static bool strides_for(const Tensor& x, const Shape& shape, Strides& result) {
  result.assign(static_cast<size_t>(shape.dim()), 1);
  int64_t to = shape.dim() - 1;
  for (int64_t from = x.dim() - 1; from >= 0;) {
    const int64_t stride = x.strides()[static_cast<size_t>(from)];
    int64_t run = x.size(from);
    for (--from; from >= 0 && (x.size(from) == 1 || x.strides()[static_cast<size_t>(from)] == stride * run);
         --from) {
      run *= x.size(from);
    }
    for (int64_t covered = 1; to >= 0 && (covered < run || shape[to] == 1); --to) {
      result[static_cast<size_t>(to)] = stride * covered;
      covered *= shape[to];
      if (covered > run) return false;
    }
  }
  return to < 0;
}

Tensor reshape(const Tensor& x, std::vector<int64_t> sizes) {
  const auto unknown = std::find(sizes.begin(), sizes.end(), -1);
  for (auto s = sizes.begin(); s != sizes.end(); ++s) {
    check<ValueError>(*s >= 0 || s == unknown,
                      "[reshape] sizes ({}) for shape {}: they are >= 0, and one may be -1",
                      fmt::join(sizes, ", "), x.shape());
  }
  if (unknown != sizes.end()) {
    *unknown = 1;
    const int64_t known = Shape(sizes).numel();
    check<ValueError>(known > 0 && x.numel() % known == 0,
                      "[reshape] shape {} cannot be viewed with {} elements times a whole number", x.shape(),
                      known);
    *unknown = x.numel() / known;
  }
  const Shape shape(std::move(sizes));
  check<ValueError>(shape.numel() == x.numel(), "[reshape] shape {} has {} elements, {} would take {}",
                    x.shape(), x.numel(), shape, shape.numel());
  Strides strides;
  const Tensor source = x.numel() == 0 || strides_for(x, shape, strides) ? x : x.contiguous();
  if (source.is_contiguous()) strides = shape.contiguous_strides();
  return record(
      "reshape", source.alias(shape, strides, source.offset()), {x}, {},
      [from = x.shape()](const Upstream& up) -> Gradients { return {reshape(up.grad, from.sizes())}; });
}

Tensor permute(const Tensor& x, const std::vector<int64_t>& order) {
  std::vector<int64_t> sizes, inverse(order.size(), -1);
  Strides strides;
  check<ValueError>(static_cast<int64_t>(order.size()) == x.dim(), "[permute] {} axes for shape {}",
                    order.size(), x.shape());
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t axis = x.shape().normalize_axis(order[i], "permute");
    check<ValueError>(inverse[static_cast<size_t>(axis)] < 0, "[permute] axis {} of shape {} is named twice",
                      axis, x.shape());
    inverse[static_cast<size_t>(axis)] = static_cast<int64_t>(i);
    sizes.push_back(x.size(axis));
    strides.push_back(x.strides()[static_cast<size_t>(axis)]);
  }
  return record("permute", x.alias(Shape(sizes), strides, x.offset()), {x}, {},
                [inverse](const Upstream& up) -> Gradients { return {permute(up.grad, inverse)}; });
}

Tensor transpose(const Tensor& x, int64_t a, int64_t b) {
  std::vector<int64_t> order(static_cast<size_t>(x.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[static_cast<size_t>(x.shape().normalize_axis(a, "transpose"))],
            order[static_cast<size_t>(x.shape().normalize_axis(b, "transpose"))]);
  return permute(x, order);
}

// The elements begin, begin + step, ... of x, `count` of them; not recorded.
static Tensor slice_alias(const Tensor& x, int64_t axis, int64_t begin, int64_t count, int64_t step) {
  Strides strides = x.strides();
  int64_t& stride = strides[static_cast<size_t>(axis)];
  const Shape shape = x.shape().with(axis, count);
  const int64_t offset = x.offset() + (shape.numel() > 0 ? begin * stride : 0);
  if (count > 1) stride *= step;
  return x.alias(shape, std::move(strides), offset);
}

Tensor slice(const Tensor& x, int64_t axis, int64_t begin, int64_t end, int64_t step) {
  axis = x.shape().normalize_axis(axis, "slice");
  check<ValueError>(step >= 1, "[slice] step {} along axis {} of shape {}: it is at least 1", step, axis,
                    x.shape());
  const int64_t size = x.size(axis);
  begin = std::clamp(begin < 0 ? begin + size : begin, int64_t{0}, size);
  end = std::clamp(end < 0 ? end + size : end, begin, size);
  const int64_t count = end == begin ? 0 : (end - begin - 1) / step + 1;
  return record("slice", slice_alias(x, axis, begin, count, step), {x}, {},
                [=, from = x.shape()](const Upstream& up) -> Gradients {
                  Tensor gx = Tensor::zeros(from, up.grad.dtype(), up.grad.device());
                  slice_alias(gx, axis, begin, count, step).copy_from(up.grad);
                  return {gx};
                });
}

Tensor select(const Tensor& x, int64_t axis, int64_t index) {
  axis = x.shape().normalize_axis(axis, "select");
  const int64_t size = x.size(axis);
  check<ValueError>(-size <= index && index < size,
                    "[select] index {} is out of range along axis {} of shape {}", index, axis, x.shape());
  if (index < 0) index += size;
  return squeeze(slice(x, axis, index, index + 1), axis);
}

Tensor expand(const Tensor& x, const Shape& shape) {
  check<ValueError>(broadcasts_to(x.shape(), shape), "[expand] shape {} does not broadcast to {}", x.shape(),
                    shape);
  return record("expand", x.alias(shape, broadcast_strides(x.shape(), x.strides(), shape), x.offset()), {x},
                {},
                // accumulate_gradient sums over what was broadcast.
                [](const Upstream& up) -> Gradients { return {up.grad}; });
}

Tensor squeeze(const Tensor& x, int64_t axis) {
  axis = x.shape().normalize_axis(axis, "squeeze");
  check<ValueError>(x.size(axis) == 1, "[squeeze] axis {} of shape {} has size {}, not 1", axis, x.shape(),
                    x.size(axis));
  return reshape(x, x.shape().without(axis).sizes());
}

Tensor unsqueeze(const Tensor& x, int64_t axis) {
  return reshape(x, x.shape().insert(axis, 1, "unsqueeze").sizes());
}

Tensor contiguous(const Tensor& x) {
  if (x.is_contiguous()) return x;
  return record("contiguous", x.clone(), {x}, {}, [](const Upstream& up) -> Gradients { return {up.grad}; });
}

Tensor cast(const Tensor& x, DType dtype) {
  check<TypeError>(!x.requires_grad() || is_floating(dtype),
                   "[cast] a tensor of {} that requires a gradient cannot become {}", x.dtype(), dtype);
  return record("cast", x.to(dtype), {x}, {},
                [from = x.dtype()](const Upstream& up) -> Gradients { return {up.grad.to(from)}; });
}

}  // namespace tapehead
