// The gradient filter of cross entropy's row pass: which of a row's probabilities are left. Device code; the
// rules stand in backends/gradient_filter.h.
#pragma once

#include <cmath>

#include "tapehead/backends/cuda/octet.h"
#include "tapehead/backends/gradient_filter.h"

namespace tapehead {

/// The filter of one row's e_c = exp(z_c - reference), which are its probabilities times their sum.
template <class W>
struct RowFilter {
  GradientFilter::Kind kind = GradientFilter::none;
  W level = 0;
  uint64_t seed = 0, first = 0;  ///< the row's first block

  __device__ explicit operator bool() const { return kind != GradientFilter::none; }

  /// Of classes [begin, begin + 8): e becomes what is left of it, else 0, and bit i of `kept` says which.
  /// Adds what was below the level to `below`. A NaN is kept.
  __device__ void choose(int64_t begin, W (&e)[kOctet], unsigned& kept, W& below) const {
    const W scale = 256 / level;
    const uint64_t bytes = kind == GradientFilter::stochastic ? random_bytes(begin) : 0;
    kept = 0;
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      bool keep = !(e[i] < level);
      if (!keep) {
        below += e[i];
        if (kind == GradientFilter::stochastic) {
          // Kept if (b + v) / 256 < e / level: whatever v is, unless what b leaves is between 0 and 1.
          const W left = std::fma(e[i], scale, -static_cast<W>(bytes >> (8 * i) & 255));
          keep = left >= 1 || (left > 0 && static_cast<W>(filter_number(seed, first, begin + i)) < left);
        }
        e[i] = keep ? level : W{0};
      }
      if (keep) kept |= 1u << i;
    }
  }

 private:
  // b of classes [begin, begin + 8), lowest byte first. begin may be negative, down to -8.
  __device__ uint64_t random_bytes(int64_t begin) const {
    const int64_t block = (begin + 16) / 16 - 1;
    const int at = static_cast<int>((begin + 16) % 16);  // where in the block's 16 bytes
    const auto words = philox(seed, first + static_cast<uint64_t>(block));
    const uint64_t low = words[0] | uint64_t{words[1]} << 32, high = words[2] | uint64_t{words[3]} << 32;
    if (at == 0) return low;
    if (at == 8) return high;
    const int shift = 8 * (at % 8);
    if (at < 8) return low >> shift | high << (64 - shift);
    const auto next = philox(seed, first + static_cast<uint64_t>(block + 1));
    return high >> shift | (next[0] | uint64_t{next[1]} << 32) << (64 - shift);
  }
};

}  // namespace tapehead
