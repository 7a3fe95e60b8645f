// The two 16-bit floating formats, as storage types: arithmetic happens after conversion to float.
//
// Conversions round to nearest, ties to even, and keep subnormals, infinities and NaN (a NaN stays
// a NaN, quiet). From double they round once: first to float by rounding to odd, which leaves the
// second rounding exact (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved
// algorithms using rounding to odd", 2008).
#pragma once

#include <bit>
#include <cstdint>

namespace tapehead {

namespace half_detail {

/// d rounded to float; an inexact result gets an odd last bit.
inline float round_to_odd(double d) {
  float f = static_cast<float>(d);
  if (static_cast<double>(f) == d || f != f) return f;
  uint32_t bits = std::bit_cast<uint32_t>(f);
  if (bits & 1) return f;
  // f is one of the two neighbours of d and even; the other neighbour is odd.
  const bool away = (static_cast<double>(f) < d) == (d > 0);  // must |f| grow?
  return std::bit_cast<float>(away ? bits + 1 : bits - 1);
}

}  // namespace half_detail

/// bfloat16: 1 sign, 8 exponent, 7 fraction bits: the upper half of a float.
struct bf16 {
  uint16_t bits = 0;

  bf16() = default;
  explicit bf16(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f);
    if (f != f) {
      bits = static_cast<uint16_t>((u >> 16) | 0x40);
    } else {
      bits = static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
    }
  }
  explicit bf16(double d) : bf16(half_detail::round_to_odd(d)) {}
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

/// IEEE binary16: 1 sign, 5 exponent, 10 fraction bits.
struct f16 {
  uint16_t bits = 0;

  f16() = default;
  explicit f16(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f);
    const uint32_t sign = (u >> 16) & 0x8000;
    const uint32_t magnitude = u & 0x7fffffff;
    uint32_t h;
    if (magnitude > 0x7f800000) {
      h = 0x7e00 | ((magnitude >> 13) & 0x1ff);
    } else if (magnitude >= 0x477ff000) {  // rounds to 2^16 or more
      h = 0x7c00;
    } else if (magnitude < 0x38800000) {  // below 2^-14: subnormal; adding 0.5 aligns and rounds the fraction
      h = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
    } else {
      h = (magnitude + 0xfff + ((magnitude >> 13) & 1) - 0x38000000) >> 13;
    }
    bits = static_cast<uint16_t>(sign | h);
  }
  explicit f16(double d) : f16(half_detail::round_to_odd(d)) {}
  operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1f;
    const uint32_t fraction = bits & 0x3ff;
    if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | (fraction << 13));
    if (exponent == 0) {  // subnormal: fraction · 2^-24
      const float value = static_cast<float>(fraction) * 0x1p-24f;
      return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
    }
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  }
};

}  // namespace tapehead
