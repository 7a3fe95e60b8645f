// Every number that operations make, seen as it is made: to compare two devices, to find where
// something goes wrong.
#pragma once

#include <cstddef>
#include <span>

#include "tapehead/core/tensor.h"

namespace tapehead {

/// While it lives, it is told what the operations of this thread compute, in their order, and may put other
/// numbers in their place: whatever follows goes on from those. It runs no operations itself. Of several on
/// one thread each is told, the one that was made first before the others; destroy them in the reverse order.
/// What one throws leaves the operation, and ends backward. Without one, an operation pays a branch.
class TapeObserver {
 public:
  TapeObserver();
  virtual ~TapeObserver();
  TapeObserver(const TapeObserver&) = delete;
  TapeObserver& operator=(const TapeObserver&) = delete;

  /// `op` has made `result` from `inputs`, some of which may be undefined; recorded or not. Its elements may
  /// be written. Views make no numbers and are not told.
  virtual void on_result(const char* op, Tensor& result, std::span<const Tensor> inputs) = 0;

  /// Backward of `op` has added its part to `sum`, the gradient of its input `input` as far as it is
  /// known. The handle may be replaced by another of its shape, dtype and device, but not written through:
  /// others may hold what it holds. The sums into the leaves' gradients have the name
  /// "accumulate_gradient", input 0.
  virtual void on_gradient(const char* op, size_t input, Tensor& sum) = 0;

  // ---- For record() and backward(), and for whoever makes numbers that no operation does (tell_result).

  static bool observing() { return newest_ != nullptr; }
  static void tell_result(const char* op, Tensor& result, std::span<const Tensor> inputs);
  static void tell_gradient(const char* op, size_t input, Tensor& sum);

 private:
  template <class F>
  static void tell(TapeObserver* observer, F&& what);

  static inline constinit thread_local TapeObserver* newest_ = nullptr;

  TapeObserver* outer_;
};

}  // namespace tapehead
