// Counter-based random numbers: Philox4x32-10
// (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
//
// Number i of a seed is a function of (seed, i) alone, so every device and any number of threads draw the
// same, and a backward can draw again what its forward drew instead of keeping it.
#pragma once

#include <array>
#include <cstdint>

namespace tapehead {

/// The bijection that it all rests on: four words scrambled by a key of two.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return c;
}

/// Four random words: block `counter` of the stream `seed`.
constexpr std::array<uint32_t, 4> philox(uint64_t seed, uint64_t counter) {
  return philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

/// A uniform number in [0, 1) with 24 random bits, exact in f32.
constexpr float to_uniform(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

/// A stream of numbers, and how many were taken: both are all there is to save.
struct Generator {
  uint64_t seed = 0;
  uint64_t next = 0;  ///< the first block not yet taken

  /// Reserves the blocks for `count` numbers; returns the first. Element i of a tensor uses
  /// word i % 4 of block first + i / 4.
  uint64_t take(int64_t count) {
    const uint64_t first = next;
    next += static_cast<uint64_t>((count + 3) / 4);
    return first;
  }

  /// One word: for choices on the host (shuffling, sampling).
  uint32_t word() { return philox(seed, take(1))[0]; }
  /// Uniform in [0, 1).
  double uniform() { return to_uniform(word()); }
  /// Uniform in [0, n), n >= 1, without bias: draws again in the uneven remainder (n up to 2^63).
  uint64_t below(uint64_t n) {
    const uint64_t limit = ~uint64_t{0} - ~uint64_t{0} % n;
    for (;;) {
      const auto w = philox(seed, take(1));
      const uint64_t x = uint64_t{w[0]} << 32 | w[1];
      if (x < limit) return x % n;
    }
  }
};

}  // namespace tapehead
