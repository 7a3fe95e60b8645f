// The first NaN or infinity, and the operation that made it.
#pragma once

#include "tapehead/core/tape_observer.h"

namespace tapehead {

/// While it lives, the first operation on this thread whose forward or backward makes a NaN or an infinity
/// throws a RuntimeError that names it and its inputs' shapes, or the input whose gradient it is
/// (torch.autograd.set_detect_anomaly). Costs a read of every number that is made.
class AnomalyGuard final : public TapeObserver {
 public:
  void on_result(const char* op, Tensor& result, std::span<const Tensor> inputs) override;
  void on_gradient(const char* op, size_t input, Tensor& sum) override;
};

}  // namespace tapehead
