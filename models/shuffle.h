// An order of chance that a seed repeats.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "tapehead/core/random.h"

namespace tapehead {

/// Fisher and Yates's shuffle (Knuth, TAOCP 2, algorithm 3.4.2P), by random numbers of (seed, round) alone.
inline void shuffle(std::span<int64_t> numbers, uint64_t seed, int64_t round) {
  Generator generator{.seed = seed, .next = static_cast<uint64_t>(round) << 32};
  for (size_t i = numbers.size(); i > 1; --i) std::swap(numbers[i - 1], numbers[generator.below(i)]);
}

}  // namespace tapehead
