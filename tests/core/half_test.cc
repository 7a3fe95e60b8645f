// The 16-bit formats, held against an independent model: the sorted list of all finite values of the format,
// computed with ldexp from the fields, and the nearest of them found by comparing exact distances.
#include "tapehead/core/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tapehead/core/random.h"

namespace tapehead {
namespace {

struct Bf16Format {
  using Type = bf16;
  static constexpr int exponent_bits = 8, fraction_bits = 7;
};
struct F16Format {
  using Type = f16;
  static constexpr int exponent_bits = 5, fraction_bits = 10;
};

template <class Format>
class HalfTest : public testing::Test {
 protected:
  using T = typename Format::Type;
  static constexpr int kBias = (1 << (Format::exponent_bits - 1)) - 1;
  static constexpr uint32_t kInfinity = ((1u << Format::exponent_bits) - 1) << Format::fraction_bits;

  static T from_bits(uint32_t bits) {
    T value;
    value.bits = static_cast<uint16_t>(bits);
    return value;
  }

  // The value of non-negative finite bits; at the bits of infinity, the power of two that would come next, so
  // that overflow is rounding like any other.
  static double value_of(uint32_t bits) {
    const int exponent = static_cast<int>(bits >> Format::fraction_bits);
    const double fraction = bits & ((1u << Format::fraction_bits) - 1);
    const double unit = std::ldexp(1.0, -Format::fraction_bits);
    if (exponent == 0) return std::ldexp(fraction * unit, 1 - kBias);
    return std::ldexp(1 + fraction * unit, exponent - kBias);
  }

  // The bits that `x` >= 0 rounds to. Distances are exact in long double for every x tried here.
  static uint32_t nearest(long double x) {
    uint32_t low = 0, high = kInfinity;
    if (x >= value_of(kInfinity)) return kInfinity;
    while (high - low > 1) {
      const uint32_t middle = (low + high) / 2;
      (value_of(middle) <= x ? low : high) = middle;
    }
    const long double below = x - value_of(low), above = value_of(high) - x;
    if (below != above) return below < above ? low : high;
    return low % 2 == 0 ? low : high;
  }

  template <class Float>
  static void expect_rounds(Float x) {
    const uint32_t sign = std::signbit(x) ? 0x8000 : 0;
    ASSERT_EQ(T(x).bits, sign | nearest(std::abs(x))) << std::hexfloat << x;
  }

  // x and the numbers of its type next to it, of both signs.
  template <class Float>
  static void expect_rounds_around(Float x) {
    const Float infinity = std::numeric_limits<Float>::infinity();
    for (const Float y : {std::nextafter(x, -infinity), x, std::nextafter(x, infinity)}) {
      if (!std::isfinite(y)) continue;
      expect_rounds(y);
      expect_rounds(-y);
    }
  }
};

using Formats = testing::Types<Bf16Format, F16Format>;
TYPED_TEST_SUITE(HalfTest, Formats);

TYPED_TEST(HalfTest, EveryBitPatternIsTheFloatThatItsFieldsSayAndComesBack) {
  using Half = typename TestFixture::T;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto x = this->from_bits(bits);
    const float f = x;
    const uint32_t magnitude = bits & 0x7fff;
    if (magnitude > this->kInfinity) {
      ASSERT_TRUE(std::isnan(f)) << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(Half(f)))) << bits;
      continue;
    }
    ASSERT_EQ(std::signbit(f), bits >= 0x8000) << bits;
    if (magnitude == this->kInfinity) {
      ASSERT_TRUE(std::isinf(f)) << bits;
    } else {
      ASSERT_EQ(std::abs(f), this->value_of(magnitude)) << bits;
    }
    ASSERT_EQ(Half(f).bits, bits);
    ASSERT_EQ(Half(static_cast<double>(f)).bits, bits);
  }
}

TYPED_TEST(HalfTest, EveryRoundingBoundaryRoundsToNearestEven) {
  for (uint32_t bits = 0; bits < this->kInfinity; ++bits) {
    const double low = this->value_of(bits), high = this->value_of(bits + 1);
    const double middle = low + (high - low) / 2;
    this->expect_rounds_around(low);
    this->expect_rounds_around(middle);
    this->expect_rounds_around(static_cast<float>(low));
    this->expect_rounds_around(static_cast<float>(middle));  // exact, or bf16's smallest half subnormals
    if (this->HasFatalFailure()) return;
  }
}

// A double just beside a tie becomes the tie if it is rounded to float on the way.
TYPED_TEST(HalfTest, DoublesRoundOnce) {
  for (uint32_t bits = 0; bits < this->kInfinity; bits += 7) {
    const double low = this->value_of(bits), high = this->value_of(bits + 1);
    const double middle = low + (high - low) / 2;
    for (const double far : {0x1p-30, 0x1p-40, 0x1p-52}) {
      this->expect_rounds(middle * (1 + far));
      this->expect_rounds(middle * (1 - far));
    }
    if (this->HasFatalFailure()) return;
  }
}

TYPED_TEST(HalfTest, RandomFloatsAndDoublesRoundToTheNearest) {
  Generator random{.seed = 1};
  for (int i = 0; i < 100'000; ++i) {
    const float f = std::bit_cast<float>(random.word());
    if (std::isfinite(f)) this->expect_rounds(f);
    const double scale = std::ldexp(1.0, static_cast<int>(random.below(60)) - 40);
    this->expect_rounds((random.uniform() - 0.5) * scale + random.uniform() * scale * 0x1p-24);
    if (this->HasFatalFailure()) return;
  }
}

TYPED_TEST(HalfTest, WhatIsTooLargeIsInfinityAndWhatIsTooSmallIsZero) {
  using Half = typename TestFixture::T;
  const double largest = std::numeric_limits<double>::max(),
               smallest = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(Half(largest).bits, this->kInfinity);
  EXPECT_EQ(Half(-largest).bits, 0x8000 | this->kInfinity);
  EXPECT_EQ(Half(std::numeric_limits<double>::infinity()).bits, this->kInfinity);
  EXPECT_EQ(Half(std::numeric_limits<float>::max()).bits, this->kInfinity);
  EXPECT_EQ(Half(smallest).bits, 0);
  EXPECT_EQ(Half(-smallest).bits, 0x8000);
  EXPECT_EQ(Half(-0.0f).bits, 0x8000);
  EXPECT_EQ(Half(-0.0).bits, 0x8000);
}

TYPED_TEST(HalfTest, EveryKindOfNaNStaysOne) {
  using Half = typename TestFixture::T;
  for (const uint32_t payload :
       {0x7f800001u, 0x7f80ffffu, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(Half(std::bit_cast<float>(payload))))) << std::hex << payload;
  }
  for (const uint64_t payload : {0x7ff0000000000001u, 0x7ff8000000000000u, 0xfff0000000000001u}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(Half(std::bit_cast<double>(payload))))) << std::hex << payload;
  }
}

}  // namespace
}  // namespace tapehead
