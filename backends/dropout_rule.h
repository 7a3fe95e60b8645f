// What dropout computes once for all elements, for host and device. Constexpr is what lets code of a device
// call it.
#pragma once

#include <cmath>
#include <cstdint>

namespace tapehead {

/// y = keeps(word) ? x · scale : 0, each element with a random word of its own.
template <class W>
struct DropoutRule {
  uint32_t least;  // of the upper 24 bits, which are all that to_uniform() takes
  W scale;

  constexpr explicit DropoutRule(double p)
      : least(static_cast<uint32_t>(std::ceil(p * 0x1p24))), scale(static_cast<W>(1 / (1 - p))) {}

  /// to_uniform(word) >= p (core/random.h) in integers, exactly.
  constexpr bool keeps(uint32_t word) const { return word >> 8 >= least; }
};

}  // namespace tapehead
