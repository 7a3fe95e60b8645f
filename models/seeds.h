// The seeds of a run's random numbers, all made from its own.
#pragma once

#include <cstdint>

#include "tapehead/core/random.h"

namespace tapehead {

/// What a run draws numbers for, beside its initialisation.
enum class Purpose : uint64_t { order, dropout, filter, split };

/// A seed for `purpose`: of the run's seed, by a block that initialisation never reaches.
inline uint64_t derive_seed(uint64_t seed, Purpose purpose) {
  const auto words = philox(seed, ~uint64_t{0} - static_cast<uint64_t>(purpose));
  return uint64_t{words[0]} << 32 | words[1];
}

}  // namespace tapehead
