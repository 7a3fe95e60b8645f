#include "tapehead/core/anomaly_guard.h"

namespace tapehead {

static bool is_finite(const Tensor& x) { return device_runtime(x.device()).all_finite(x); }

void AnomalyGuard::on_result(const char* op, Tensor& result, std::span<const Tensor> inputs) {
  if (is_finite(result)) return;
  std::string shapes;
  for (const Tensor& x : inputs) {
    if (x.defined()) shapes += fmt::format("{}shape {}", shapes.empty() ? "" : ", ", x.shape());
  }
  fail<RuntimeError>("[{}] forward made a NaN or an infinity: result of shape {} from inputs of {}", op,
                     result.shape(), shapes);
}

void AnomalyGuard::on_gradient(const char* op, size_t input, Tensor& sum) {
  check<RuntimeError>(is_finite(sum),
                      "[{}] backward made a NaN or an infinity: gradient of input {}, of shape {}", op, input,
                      sum.shape());
}

}  // namespace tapehead
