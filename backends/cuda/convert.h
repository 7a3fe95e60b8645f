// One element from any dtype to any other, on the device: as backends/cpu/convert.h does it.
#pragma once

#include "tapehead/backends/cuda/launch.h"

namespace tapehead {

/// Rounded to nearest even; integers by way of f64 where a 16-bit float follows.
template <class To, class From>
__device__ To convert(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_integral_v<From>) {
    return narrow<To>(static_cast<double>(x));
  } else {
    return narrow<To>(widen(x));
  }
}

}  // namespace tapehead
