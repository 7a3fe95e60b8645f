#include "tapehead/backends/cpu/cpu_backend.h"

namespace tapehead {
void CpuBackend::attention(const Attention&, Tensor&, Tensor&) { fail<RuntimeError>("[attention] not on the cpu"); }
void CpuBackend::attention_backward(const Attention&, const Tensor&, const Tensor&, const Tensor&, Tensor&, Tensor&, Tensor&) { fail<RuntimeError>("[attention_backward] not on the cpu"); }
}  // namespace tapehead
