// The tensor: a shape and strides over shared storage and, if it wants a gradient, the slot that receives it.
//
// One rule tells what autograd sees: free functions (core/view.h, ops/) are recorded on the tape, members of
// Tensor never are; what a member returns is detached.
//
// A Tensor is a handle: copies refer to the same tensor. Handles may be used from several threads; writing to
// a tensor while another thread uses it is the caller's race, as with any C++ object.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tapehead/core/dtype.h"
#include "tapehead/core/shape.h"
#include "tapehead/core/storage.h"

namespace tapehead {

struct GradientSlot;  // core/tape.h

/// Bytes of a tensor's elements. Throws ValueError if they do not fit an int64.
int64_t bytes_of(const Shape& shape, DType dtype);

class Tensor {
 public:
  /// No tensor: an argument left out, a gradient that does not exist. Only defined() may be called on it.
  Tensor() = default;

  /// Uninitialised, contiguous.
  explicit Tensor(Shape shape, DType dtype = DType::f32, Device device = default_device());

  static Tensor full(Shape shape, double value, DType dtype = DType::f32, Device device = default_device());
  static Tensor zeros(Shape shape, DType dtype = DType::f32, Device device = default_device()) {
    return full(std::move(shape), 0, dtype, device);
  }
  /// Shape ().
  static Tensor scalar(double value, DType dtype = DType::f32, Device device = default_device()) {
    return full({}, value, dtype, device);
  }
  /// The values in row-major order, dtype of T. Throws ValueError unless their number fits the shape.
  template <class T>
  static Tensor from(Shape shape, std::span<const T> values, Device device = default_device());
  template <class T>
  static Tensor from(Shape shape, const std::vector<T>& values, Device device = default_device()) {
    return from<T>(std::move(shape), std::span<const T>(values), device);
  }
  /// Contiguous over bytes that the storage already holds, `offset` elements in.
  static Tensor over(std::shared_ptr<Storage> storage, Shape shape, DType dtype, int64_t offset = 0);

  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const { return impl_->shape; }
  const Strides& strides() const { return impl_->strides; }
  DType dtype() const { return impl_->dtype; }
  Device device() const { return impl_->storage->device(); }
  int64_t dim() const { return shape().dim(); }
  int64_t numel() const { return shape().numel(); }
  int64_t size(int64_t axis) const { return shape()[axis]; }
  /// Bytes of the elements, counted once each.
  int64_t bytes() const { return numel() * size_of(dtype()); }
  /// Whether the elements stand densely in row-major order.
  bool is_contiguous() const;

  /// The first element, on the tensor's device. Throws TypeError if T is not the dtype.
  template <class T>
  const T* data() const {
    return static_cast<const T*>(checked_data(dtype_of<T>()));
  }
  /// The same for writing: counts as a change in place.
  template <class T>
  T* mutable_data() {
    bump_version();
    return static_cast<T*>(checked_data(dtype_of<T>()));
  }
  /// The same, untyped.
  const void* raw_data() const;
  void* mutable_raw_data();

  /// All elements in row-major order, converted to T. Copies to the host.
  template <class T>
  std::vector<T> to_vector() const;
  /// The only element. Throws ValueError unless there is exactly one.
  double item() const;

  /// The same storage under another shape and strides, `offset` elements from its begin. Not checked.
  Tensor alias(Shape shape, Strides strides, int64_t offset) const;
  int64_t offset() const { return impl_->offset; }
  /// The same elements, unknown to the tape.
  Tensor detach() const { return alias(shape(), strides(), offset()); }
  /// Dense, uninitialised, of x's shape, dtype and device.
  static Tensor empty_like(const Tensor& x) { return Tensor(x.shape(), x.dtype(), x.device()); }
  /// These elements, dense: itself detached if it is so already, else a copy.
  Tensor contiguous() const;
  /// A dense copy.
  Tensor clone() const { return to_new(dtype()); }
  /// A dense copy in another dtype, rounded to nearest even; itself detached if it has that dtype.
  Tensor to(DType dtype) const { return dtype == this->dtype() ? detach() : to_new(dtype); }
  /// A dense copy on another device; itself detached if it is there.
  Tensor to(Device device) const;

  /// Overwrites all elements; x broadcasts, and may share elements with this tensor. In place: the version
  /// counts up. Throws ValueError on shapes, and if elements of this tensor are one and the same (it was
  /// expanded). Throws RuntimeError while grad mode is on and this tensor requires a gradient.
  void fill(double value);
  void copy_from(const Tensor& x);

  int64_t version() const { return impl_->storage->version(); }
  void bump_version() { impl_->storage->bump_version(); }
  const std::shared_ptr<Storage>& storage() const { return impl_->storage; }

  /// Whether no other handle, no view and no owner outside shares these elements.
  bool is_exclusive() const {
    return impl_.use_count() == 1 && impl_->storage.use_count() == 1 && !impl_->storage->is_foreign();
  }

  /// Whether backward brings a gradient here: a leaf that asked for one, or a result that depends on one.
  bool requires_grad() const { return impl_->slot != nullptr; }
  /// Makes this tensor a leaf that wants a gradient, or no longer one. Returns itself.
  /// Throws TypeError for integers, RuntimeError for a result of recorded operations.
  Tensor& set_requires_grad(bool wanted = true);
  /// The gradient accumulated so far, undefined before the first backward. Of leaves only.
  Tensor grad() const;
  /// Replaces the accumulated gradient; undefined clears it. Throws ValueError on another shape, dtype or
  /// device, RuntimeError unless this tensor requires a gradient.
  void set_grad(Tensor gradient);
  /// Calls `hook` with the whole gradient of this tensor whenever backward has summed it; a defined result
  /// replaces it. A hook that holds this tensor keeps both alive for good. Throws RuntimeError unless this
  /// tensor requires a gradient.
  void register_hook(std::function<Tensor(const Tensor& gradient)> hook);

  const std::shared_ptr<GradientSlot>& slot() const { return impl_->slot; }
  /// For the tape alone: makes this a recorded result.
  void set_slot(std::shared_ptr<GradientSlot> slot) { impl_->slot = std::move(slot); }
  /// Whether both handles refer to one tensor.
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }

 private:
  struct Impl {
    std::shared_ptr<Storage> storage;
    Shape shape;
    Strides strides;
    int64_t offset = 0;  // in elements
    DType dtype;
    std::shared_ptr<GradientSlot> slot;
  };

  void* checked_data(DType wanted) const;
  Tensor to_new(DType dtype) const;
  void check_writable_in_place(const char* op) const;

  std::shared_ptr<Impl> impl_;
};

}  // namespace tapehead
