// Products with 16-bit operands that no library here takes.
#pragma once

#include "tapehead/backends/cpu/cpu_backend.h"

namespace tapehead {

/// y = alpha · a·b + beta · y, (M, K)·(K, N) -> (M, N), each f32, f16 or bf16 and of any strides: panels are
/// widened to f32, in which products of 16-bit numbers are exact, and multiplied there. Throws
/// OutOfMemoryError if there is none for a thread's panels.
void matmul_by_panels(CpuBackend& backend, double alpha, const Tensor& a, const Tensor& b, double beta,
                      const Tensor& y);

}  // namespace tapehead
