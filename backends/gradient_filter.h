// Which of a row's probabilities the gradient of cross entropy keeps, for host and device: see
// CrossEntropyRows, backends/backend.h.
#pragma once

#include <cstdint>

#include "tapehead/core/random.h"

namespace tapehead {

/// The rule for a probability p_c; the target index is always kept, exactly.
struct GradientFilter {
  enum Kind : uint8_t {
    none,
    threshold,   ///< p_c >= level; others count as 0
    stochastic,  ///< p_c >= level; others become `level` with probability p_c / level, else 0: without bias
  };
  Kind kind = none;
  double level = 0;
  bool operator==(const GradientFilter&) const = default;
};

/// Blocks of random numbers that a stochastic filter takes for a row of C classes: a byte b a class, byte c %
/// 16 of block first + c / 16, of a row whose blocks begin at `first`.
constexpr int64_t filter_blocks(int64_t C) { return (C + 15) / 16; }

/// What decides for class c where its byte alone cannot, once in 256 times: v, uniform in
/// [0, 1), of the stream `seed`. The number of the class is (b + v) / 256.
constexpr float filter_number(uint64_t seed, uint64_t first, int64_t c) {
  const uint64_t block = first + static_cast<uint64_t>(c / 16);
  return to_uniform(philox(seed, (uint64_t{1} << 63) + 16 * block + static_cast<uint64_t>(c % 16))[0]);
}

}  // namespace tapehead
