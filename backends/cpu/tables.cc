#include "tapehead/backends/cpu/cpu_backend.h"

namespace tapehead {
int64_t CpuBackend::first_out_of_range(const Tensor&, int64_t, int64_t) { fail<RuntimeError>("[first_out_of_range] not on the cpu"); }
void CpuBackend::gather_rows(const Tensor&, const Tensor&, Tensor&) { fail<RuntimeError>("[gather_rows] not on the cpu"); }
void CpuBackend::scatter_add_rows(const Tensor&, const Tensor&, Tensor&) { fail<RuntimeError>("[scatter_add_rows] not on the cpu"); }
}  // namespace tapehead
