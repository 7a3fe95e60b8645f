#include "tapehead/core/tensor.h"

#include "tapehead/core/tape.h"

namespace tapehead {

int64_t bytes_of(const Shape& shape, DType dtype) {
  int64_t bytes;
  check<ValueError>(!__builtin_mul_overflow(shape.numel(), size_of(dtype), &bytes),
                    "a tensor of shape {} and dtype {} has too many bytes", shape, dtype);
  return bytes;
}

Tensor::Tensor(Shape shape, DType dtype, Device device) : impl_(std::make_shared<Impl>()) {
  impl_->storage = std::make_shared<Storage>(device, bytes_of(shape, dtype));
  impl_->strides = shape.contiguous_strides();
  impl_->shape = std::move(shape);
  impl_->dtype = dtype;
}

Tensor Tensor::full(Shape shape, double value, DType dtype, Device device) {
  Tensor t(std::move(shape), dtype, device);
  device_runtime(device).fill(t, value);
  return t;
}

template <class T>
Tensor Tensor::from(Shape shape, std::span<const T> values, Device device) {
  check<ValueError>(static_cast<int64_t>(values.size()) == shape.numel(),
                    "[from] shape {} takes {} values, not {}", shape, shape.numel(), values.size());
  Tensor t(std::move(shape), dtype_of<T>(), device);
  if (!values.empty()) device_runtime(device).copy_from_host(t.mutable_raw_data(), values.data(), t.bytes());
  return t;
}

Tensor Tensor::over(std::shared_ptr<Storage> storage, Shape shape, DType dtype, int64_t offset) {
  const int64_t room = storage->bytes() / size_of(dtype);
  check<ValueError>(0 <= offset && offset <= room && shape.numel() <= room - offset,
                    "[over] shape {} of {} at element {} does not fit into {} bytes", shape, dtype, offset,
                    storage->bytes());
  Tensor t;
  t.impl_ = std::make_shared<Impl>();
  t.impl_->storage = std::move(storage);
  t.impl_->strides = shape.contiguous_strides();
  t.impl_->shape = std::move(shape);
  t.impl_->dtype = dtype;
  t.impl_->offset = offset;
  return t;
}

bool Tensor::is_contiguous() const {
  if (numel() == 0) return true;
  int64_t expected = 1;
  for (int64_t i = dim(); i-- > 0;) {
    if (size(i) != 1 && strides()[static_cast<size_t>(i)] != expected) return false;
    expected *= size(i);
  }
  return true;
}

const void* Tensor::raw_data() const {
  return static_cast<const char*>(impl_->storage->data()) + impl_->offset * size_of(impl_->dtype);
}

void* Tensor::mutable_raw_data() {
  bump_version();
  return const_cast<void*>(raw_data());
}

void* Tensor::checked_data(DType wanted) const {
  check<TypeError>(wanted == dtype(), "elements of dtype {} were read as {}", dtype(), wanted);
  return const_cast<void*>(raw_data());
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  std::vector<T> values(static_cast<size_t>(numel()));
  if (!values.empty()) {
    const Tensor dense = to(dtype_of<T>()).contiguous();
    device_runtime(device()).copy_to_host(values.data(), dense.raw_data(), dense.bytes());
  }
  return values;
}

double Tensor::item() const {
  check<ValueError>(numel() == 1, "[item] wants exactly one element, not shape {}", shape());
  return to_vector<double>()[0];
}

Tensor Tensor::alias(Shape shape, Strides strides, int64_t offset) const {
  Tensor t;
  t.impl_ = std::make_shared<Impl>();
  t.impl_->storage = impl_->storage;
  t.impl_->shape = std::move(shape);
  t.impl_->strides = std::move(strides);
  t.impl_->offset = offset;
  t.impl_->dtype = impl_->dtype;
  return t;
}

Tensor Tensor::contiguous() const { return is_contiguous() ? detach() : to_new(dtype()); }

Tensor Tensor::to_new(DType dtype) const {
  Tensor t(shape(), dtype, device());
  device_runtime(device()).copy(*this, t);
  return t;
}

Tensor Tensor::to(Device to) const {
  if (to == device()) return detach();
  const Tensor dense = contiguous();
  Tensor t(shape(), dtype(), to);
  if (numel() == 0) return t;
  if (to.kind == Device::cpu) {
    device_runtime(device()).copy_to_host(t.mutable_raw_data(), dense.raw_data(), bytes());
  } else {
    device_runtime(to).copy_from_host(t.mutable_raw_data(), dense.raw_data(), bytes());
  }
  return t;
}

void Tensor::check_writable_in_place(const char* op) const {
  check<RuntimeError>(
      !requires_grad() || !grad_enabled(),
      "[{}] a tensor of shape {} that requires a gradient is not changed in place while grad mode is on: "
      "enter a NoGradGuard first",
      op, shape());
  for (int64_t i = 0; i < dim(); ++i) {
    check<ValueError>(size(i) <= 1 || strides()[static_cast<size_t>(i)] != 0,
                      "[{}] the elements along axis {} of shape {} are one and the same: expanded "
                      "tensors are not written",
                      op, i, shape());
  }
}

void Tensor::fill(double value) {
  check_writable_in_place("fill");
  bump_version();
  device_runtime(device()).fill(*this, value);
}

void Tensor::copy_from(const Tensor& x) {
  check_writable_in_place("copy_from");
  check<ValueError>(broadcasts_to(x.shape(), shape()), "[copy_from] shape {} does not broadcast to {}",
                    x.shape(), shape());
  bump_version();
  // What is read must not have been written.
  device_runtime(device()).copy(x.storage() == storage() ? x.clone() : x.to(device()), *this);
}

Tensor& Tensor::set_requires_grad(bool wanted) {
  if (requires_grad() && slot()->producer) {
    fail<RuntimeError>(
        "[set_requires_grad] a tensor of shape {} is the result of [{}]: only leaves are told to require a "
        "gradient or not; "
        "detach() it first",
        shape(), slot()->producer->op());
  }
  if (!wanted) {
    impl_->slot = nullptr;
  } else if (!requires_grad()) {
    check<TypeError>(is_floating(dtype()),
                     "[set_requires_grad] only floating tensors have gradients, not dtype {}", dtype());
    impl_->slot = std::make_shared<GradientSlot>(shape(), dtype(), device());
  }
  return *this;
}

Tensor Tensor::grad() const { return slot() ? slot()->gradient : Tensor(); }

void Tensor::set_grad(Tensor gradient) {
  check<RuntimeError>(requires_grad(), "[set_grad] a tensor of shape {} does not require a gradient",
                      shape());
  if (!gradient.defined()) {
    slot()->gradient = {};
    return;
  }
  check<ValueError>(
      gradient.shape() == shape() && gradient.dtype() == dtype() && gradient.device() == device(),
      "[set_grad] a gradient of shape {} of {} on {} for a tensor of shape {} of {} on {}: they are the same",
      gradient.shape(), gradient.dtype(), gradient.device(), shape(), dtype(), device());
  slot()->gradient = gradient.detach();
}

void Tensor::register_hook(std::function<Tensor(const Tensor&)> hook) {
  check<RuntimeError>(requires_grad(), "[register_hook] a tensor of shape {} does not require a gradient",
                      shape());
  slot()->hooks.push_back(std::move(hook));
}

#define TAPEHEAD_INSTANTIATE(T)                                       \
  template Tensor Tensor::from<T>(Shape, std::span<const T>, Device); \
  template std::vector<T> Tensor::to_vector<T>() const;
TAPEHEAD_INSTANTIATE(double)
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(f16)
TAPEHEAD_INSTANTIATE(bf16)
TAPEHEAD_INSTANTIATE(int64_t)
TAPEHEAD_INSTANTIATE(int32_t)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
