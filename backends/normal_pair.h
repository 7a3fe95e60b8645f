// Two normal numbers of two random words, by Box and Muller (1958), for host and device. Constexpr is what
// lets code of a device call it.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace tapehead {

/// radius · cos(angle) and radius · sin(angle) are the numbers, of mean 0 and deviation 1. Their products and
/// sums are left to the caller: what keeps a device from contracting them is its own.
struct NormalPair {
  double radius, angle;

  /// The radius from w0, in (0, 1] so that its logarithm is finite; the angle from w1.
  constexpr NormalPair(uint32_t w0, uint32_t w1)
      : radius(std::sqrt(-2 * std::log((w0 + 1.0) * 0x1p-32))),
        angle(2 * std::numbers::pi * (w1 * 0x1p-32)) {}
};

}  // namespace tapehead
