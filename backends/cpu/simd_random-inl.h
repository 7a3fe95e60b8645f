// Random words in vectors, inside HWY_NAMESPACE (simd.h shows how): the same as core/random.h's.

#if defined(TAPEHEAD_SIMD_RANDOM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TAPEHEAD_SIMD_RANDOM_INL_H_
#undef TAPEHEAD_SIMD_RANDOM_INL_H_
#else
#define TAPEHEAD_SIMD_RANDOM_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "tapehead/core/random.h"

HWY_BEFORE_NAMESPACE();
namespace tapehead::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// The words of `blocks` blocks of stream `seed`, block `first` first, four each. `out` is aligned and has
/// room up to a multiple of 32 words.
HWY_INLINE void RandomWords(uint64_t seed, uint64_t first, int64_t blocks, uint32_t* HWY_RESTRICT out) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t block = 0; block < blocks; ++block) {
    const auto words = philox(seed, first + static_cast<uint64_t>(block));
    std::copy(words.begin(), words.end(), out + 4 * block);
  }
#else
  // A lane has one of a block's words in its lower half; what gathers in the upper one, no product reads.
  const hn::ScalableTag<uint64_t> d;
  const hn::Repartition<uint32_t, decltype(d)> half;
  const auto product = [&](auto word, uint64_t factor) HWY_ATTR {
    return hn::MulEven(hn::BitCast(half, word), hn::BitCast(half, hn::Set(d, factor)));
  };
  const auto lower = hn::Set(d, uint64_t{0xFFFFFFFF});
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t block = 0; block < blocks; block += lanes) {
    const auto counter = hn::Iota(d, first + static_cast<uint64_t>(block));
    auto c0 = counter, c1 = hn::ShiftRight<32>(counter), c2 = hn::Zero(d), c3 = hn::Zero(d);
    uint64_t k0 = seed & 0xFFFFFFFF, k1 = seed >> 32;
    for (int round = 0; round < 10; ++round) {
      const auto p0 = product(c0, 0xD2511F53), p1 = product(c2, 0xCD9E8D57);
      c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1), hn::Set(d, k0));
      c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3), hn::Set(d, k1));
      c1 = p1;
      c3 = p0;
      k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF;
      k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF;
    }
    const auto front = hn::Or(hn::And(c0, lower), hn::ShiftLeft<32>(c1));
    const auto back = hn::Or(hn::And(c2, lower), hn::ShiftLeft<32>(c3));
    hn::StoreInterleaved2(front, back, d, reinterpret_cast<uint64_t*>(out + 4 * block));
  }
#endif
}

/// Bytes as numbers, 0 to 255.
template <class D>
HWY_INLINE hn::Vec<D> ByteNumbers(D d, const uint8_t* bytes) {
  const hn::Rebind<uint8_t, D> d8;
  const hn::Rebind<int32_t, D> d32;
  const auto integers = hn::PromoteTo(d32, hn::LoadU(d8, bytes));
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return hn::ConvertTo(d, integers);
  } else {
    return hn::PromoteTo(d, integers);
  }
}

}  // namespace tapehead::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
