// Dense runs of elements from one dtype to another: the place that widens and rounds 16-bit floats in bulk.
#pragma once

#include "tapehead/core/dtype.h"

namespace tapehead {

/// out[i] = in[i] for i < n, rounded to nearest even (core/half.h); integers by way of f64 where a 16-bit
/// float follows. `in` and `out` do not overlap.
void convert_run(DType from, const void* in, DType to, void* out, int64_t n);

/// One element.
template <class To, class From>
To convert(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_integral_v<From> && sizeof(To) == 2) {
    return static_cast<To>(static_cast<double>(x));
  } else {
    return static_cast<To>(static_cast<wide_t<From>>(x));
  }
}

}  // namespace tapehead
