#include "tapehead/backends/cpu/cpu_backend.h"

namespace tapehead {
void CpuBackend::unary(Unary, const Tensor&, Tensor&) { fail<RuntimeError>("[unary] not on the cpu"); }
void CpuBackend::unary_backward(Unary, const Tensor&, const Tensor&, Tensor&) { fail<RuntimeError>("[unary_backward] not on the cpu"); }
void CpuBackend::binary(Binary, const Tensor&, const Tensor&, Tensor&) { fail<RuntimeError>("[binary] not on the cpu"); }
void CpuBackend::dropout(const Tensor&, double, uint64_t, uint64_t, Tensor&) { fail<RuntimeError>("[dropout] not on the cpu"); }
}  // namespace tapehead
