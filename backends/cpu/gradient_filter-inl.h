// The gradient filter of cross entropy's row pass, inside HWY_NAMESPACE (simd.h shows how): which of a row's
// probabilities are left, and where they go. The rules stand in backends/gradient_filter.h.

#if defined(TAPEHEAD_GRADIENT_FILTER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TAPEHEAD_GRADIENT_FILTER_INL_H_
#undef TAPEHEAD_GRADIENT_FILTER_INL_H_
#else
#define TAPEHEAD_GRADIENT_FILTER_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "tapehead/backends/cpu/simd_random-inl.h"
#include "tapehead/backends/gradient_filter.h"

HWY_BEFORE_NAMESPACE();
namespace tapehead::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Elements of a row that are worked on at once: whole vectors on every target, and few enough that all
// buffers of a block fit the cache.
constexpr int64_t kRowBlock = 512;

// Where the entries go that are left of a row.
template <class W>
struct SparseRun {
  int32_t* index = nullptr;
  W* value = nullptr;
  int64_t capacity = 0;
  int64_t count = 0;  // capacity + 1: there were more

  void add(int64_t c, W g) {
    if (count < capacity) {
      index[count] = static_cast<int32_t>(c);
      value[count] = g;
    }
    count = std::min(count + 1, capacity + 1);
  }
};

// The filter of one row's e_c = exp(z_c - reference), which are its probabilities times their sum.
template <class W>
struct RowFilter {
  GradientFilter::Kind kind = GradientFilter::none;
  W level = 0;
  uint64_t seed = 0, first = 0;  // the row's first block

  explicit operator bool() const { return kind != GradientFilter::none; }

  // Calls keep(i, e) for what is left of classes [begin, begin + padded), whose e are values(i), a vector
  // from i on; most vectors have nothing. Returns the sum of what was below the level. A NaN is kept.
  template <class Values, class Keep>
  HWY_INLINE double choose(int64_t begin, int64_t padded, Values&& values, Keep&& keep) const {
    const hn::ScalableTag<W> d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    const auto l = hn::Set(d, level), scale = hn::Set(d, 256 / level), zero = hn::Zero(d);
    HWY_ALIGN uint32_t words[kRowBlock / 4];
    HWY_ALIGN W v[hn::MaxLanes(d)], left[hn::MaxLanes(d)];
    if (kind == GradientFilter::stochastic) {
      RandomWords(seed, first + static_cast<uint64_t>(begin / 16), (padded + 15) / 16, words);
    } else {
      std::fill_n(words, kRowBlock / 4, ~uint32_t{0});  // next to nothing below the level comes into question
    }
    const auto* bytes = reinterpret_cast<const uint8_t*>(words);
    auto below = zero;
    for (int64_t i = 0; i < padded; i += lanes) {
      const auto e = values(i);
      const auto small = hn::Lt(e, l);
      below = hn::Add(below, hn::IfThenElseZero(small, e));
      // Kept if (b + v) / 256 < e / level: whatever v is, unless what b leaves is between 0 and 1.
      const auto rest = hn::IfThenElse(small, hn::MulSub(e, scale, ByteNumbers(d, bytes + i)), scale);
      const auto candidate = hn::Not(hn::Le(rest, zero));
      if (hn::AllFalse(d, candidate)) continue;
      hn::Store(e, d, v);
      hn::Store(rest, d, left);
      uint64_t bits = 0;
      hn::StoreMaskBits(d, candidate, reinterpret_cast<uint8_t*>(&bits));
      for (; bits != 0; bits &= bits - 1) {
        const int64_t k = std::countr_zero(bits);
        if (!(v[k] < level)) {
          keep(i + k, v[k]);
        } else if (kind == GradientFilter::stochastic &&
                   (left[k] >= 1 || static_cast<W>(filter_number(seed, first, begin + i + k)) < left[k])) {
          keep(i + k, level);
        }
      }
    }
    return static_cast<double>(hn::GetLane(hn::SumOfLanes(d, below)));
  }
};

}  // namespace tapehead::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
