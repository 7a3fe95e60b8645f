#include "tapehead/backends/cpu/cpu_backend.h"

namespace tapehead {
void CpuBackend::softmax(const Tensor&, bool, Tensor&) { fail<RuntimeError>("[softmax] not on the cpu"); }
void CpuBackend::softmax_backward(const Tensor&, const Tensor&, bool, Tensor&) { fail<RuntimeError>("[softmax_backward] not on the cpu"); }
void CpuBackend::layer_norm(const Tensor&, const Tensor&, const Tensor&, double, Tensor&, Tensor&, Tensor&) { fail<RuntimeError>("[layer_norm] not on the cpu"); }
void CpuBackend::layer_norm_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, Tensor&, Tensor&, Tensor&) { fail<RuntimeError>("[layer_norm_backward] not on the cpu"); }
}  // namespace tapehead
