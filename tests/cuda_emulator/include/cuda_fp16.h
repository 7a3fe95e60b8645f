// Stands in for CUDA's header of this name (README.md).
#pragma once

#include "half_bits.h"

using __half = cuda_emulator::HalfBits<tapehead::f16>;

inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
inline uint16_t __half_as_ushort(__half h) { return h.bits; }
inline float __half2float(__half h) { return cuda_emulator::to_float(h); }
inline __half __float2half_rn(float x) { return cuda_emulator::rounded<tapehead::f16>(x); }
inline __half __double2half(double x) { return cuda_emulator::rounded<tapehead::f16>(x); }
