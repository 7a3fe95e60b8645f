// A 16-bit float of CUDA's: its bits, and core/half.h's arithmetic.
#pragma once

#include "tapehead/core/half.h"

namespace cuda_emulator {

/// T is tapehead's type of the same format.
template <class T>
struct HalfBits {
  uint16_t bits;
};

template <class T>
float to_float(HalfBits<T> h) {
  T x;
  x.bits = h.bits;
  return x;
}

template <class T, class W>
HalfBits<T> rounded(W x) {
  return {T(x).bits};
}

}  // namespace cuda_emulator
