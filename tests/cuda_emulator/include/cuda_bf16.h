// Stands in for CUDA's header of this name (README.md).
#pragma once

#include "half_bits.h"

using __nv_bfloat16 = cuda_emulator::HalfBits<tapehead::bf16>;

inline __nv_bfloat16 __ushort_as_bfloat16(uint16_t bits) { return {bits}; }
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 h) { return h.bits; }
inline float __bfloat162float(__nv_bfloat16 h) { return cuda_emulator::to_float(h); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return cuda_emulator::rounded<tapehead::bf16>(x); }
inline __nv_bfloat16 __double2bfloat16(double x) { return cuda_emulator::rounded<tapehead::bf16>(x); }
