// Stands in for CUDA's header of this name (README.md).
#pragma once

#include "tapehead/core/half.h"

struct __half {
  uint16_t bits;
};

inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
inline uint16_t __half_as_ushort(__half h) { return h.bits; }
inline float __half2float(__half h) {
  tapehead::f16 x;
  x.bits = h.bits;
  return x;
}
inline __half __float2half_rn(float x) { return {tapehead::f16(x).bits}; }
inline __half __double2half(double x) { return {tapehead::f16(x).bits}; }
