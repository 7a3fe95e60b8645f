// Stands in for CUDA's header of this name (README.md).
#pragma once

#include "tapehead/core/half.h"

struct __nv_bfloat16 {
  uint16_t bits;
};

inline __nv_bfloat16 __ushort_as_bfloat16(uint16_t bits) { return {bits}; }
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 h) { return h.bits; }
inline float __bfloat162float(__nv_bfloat16 h) {
  tapehead::bf16 x;
  x.bits = h.bits;
  return x;
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {tapehead::bf16(x).bits}; }
inline __nv_bfloat16 __double2bfloat16(double x) { return {tapehead::bf16(x).bits}; }
