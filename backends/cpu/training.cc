#include "tapehead/backends/cpu/cpu_backend.h"

namespace tapehead {
void CpuBackend::adamw(const AdamW&, std::span<Tensor>, std::span<const Tensor>, std::span<Tensor>, std::span<Tensor>) { fail<RuntimeError>("[adamw] not on the cpu"); }
double CpuBackend::squared_norm(std::span<const Tensor>) { fail<RuntimeError>("[squared_norm] not on the cpu"); }
void CpuBackend::uniform(double, double, uint64_t, uint64_t, Tensor&) { fail<RuntimeError>("[uniform] not on the cpu"); }
void CpuBackend::normal(double, double, uint64_t, uint64_t, Tensor&) { fail<RuntimeError>("[normal] not on the cpu"); }
}  // namespace tapehead
