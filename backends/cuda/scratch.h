// Memory that a kernel needs for its own passes.
#pragma once

#include <memory>

#include "tapehead/backends/cuda/cuda_backend.h"

namespace tapehead {

/// Device memory for the launches made while this lives. Given back at its end,
/// though they may still run: what takes the same memory next is launched behind them
/// on the one stream. Not counted as tensors are, as a library's workspace is not.
class Scratch {
 public:
  /// At least `bytes`, aligned to 256, uninitialised. Throws OutOfMemoryError.
  Scratch(CudaBackend& backend, int64_t bytes)
      : backend_(backend), bytes_(bytes > 0 ? bytes : 1), memory_(backend.allocate(bytes_)) {}
  ~Scratch() { backend_.deallocate(memory_, bytes_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }

 private:
  CudaBackend& backend_;
  int64_t bytes_;
  void* memory_;
};

/// A dense tensor in such memory, which lives as long as the tensor.
inline Tensor scratch_tensor(CudaBackend& backend, Shape shape, DType dtype) {
  const int64_t bytes = shape.numel() * size_of(dtype);
  const auto memory = std::make_shared<Scratch>(backend, bytes);
  auto storage = std::make_shared<Storage>(memory, memory->as<void>(), bytes, Device{Device::cuda});
  return Tensor::over(std::move(storage), std::move(shape), dtype);
}

}  // namespace tapehead
