#include "tapehead/backends/cpu/convert.h"

#include <cstring>

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/convert.cc"
#include "tapehead/backends/cpu/simd.h"
#include <hwy/foreach_target.h>
#include "tapehead/backends/cpu/simd_math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tapehead::HWY_NAMESPACE {

// Whole vectors at a time; returns how many elements are done, the rest is the caller's.

int64_t Bf16ToF32(const uint16_t* HWY_RESTRICT in, float* HWY_RESTRICT out, int64_t n) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, in + i)))), d, out + i);
  }
  return i;
}

int64_t F32ToBf16(const float* HWY_RESTRICT in, uint16_t* HWY_RESTRICT out, int64_t n) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto half = hn::Set(du, 0x7fffu), one = hn::Set(du, 1u), quiet = hn::Set(du, 0x40u);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, in + i);
    const auto u = hn::BitCast(du, v);
    const auto upper = hn::ShiftRight<16>(u);
    const auto rounded = hn::ShiftRight<16>(hn::Add(u, hn::Add(half, hn::And(upper, one))));
    const auto nan = hn::RebindMask(du, hn::IsNaN(v));
    const auto bits = hn::IfThenElse(nan, hn::Or(upper, quiet), rounded);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, bits)), d16, out + i);  // below 2^16: nothing saturates
  }
  return i;
}

int64_t F16ToF32(const uint16_t* HWY_RESTRICT in, float* HWY_RESTRICT out, int64_t n) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> d16;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  if (HWY_TARGET > HWY_AVX2) return 0;  // Highway's emulation elsewhere treats subnormals and NaN otherwise
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(in + i))), d, out + i);
  }
  return i;
}

int64_t F32ToF16(const float* HWY_RESTRICT in, uint16_t* HWY_RESTRICT out, int64_t n) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> d16;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  if (HWY_TARGET > HWY_AVX2) return 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::DemoteTo(d16, hn::LoadU(d, in + i)), d16, reinterpret_cast<hwy::float16_t*>(out + i));
  }
  return i;
}

}  // namespace tapehead::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tapehead {

HWY_EXPORT(Bf16ToF32);
HWY_EXPORT(F32ToBf16);
HWY_EXPORT(F16ToF32);
HWY_EXPORT(F32ToF16);

// Elements that vectors did; 0 where there are none for this pair.
static int64_t convert_vectors(DType from, const void* in, DType to, void* out, int64_t n) {
  const auto* words = static_cast<const uint16_t*>(in);
  auto* half_words = static_cast<uint16_t*>(out);
  if (from == DType::bf16 && to == DType::f32)
    return HWY_DYNAMIC_DISPATCH(Bf16ToF32)(words, static_cast<float*>(out), n);
  if (from == DType::f16 && to == DType::f32)
    return HWY_DYNAMIC_DISPATCH(F16ToF32)(words, static_cast<float*>(out), n);
  if (from == DType::f32 && to == DType::bf16)
    return HWY_DYNAMIC_DISPATCH(F32ToBf16)(static_cast<const float*>(in), half_words, n);
  if (from == DType::f32 && to == DType::f16)
    return HWY_DYNAMIC_DISPATCH(F32ToF16)(static_cast<const float*>(in), half_words, n);
  return 0;
}

void convert_run(DType from, const void* in, DType to, void* out, int64_t n) {
  if (from == to) {
    std::memcpy(out, in, static_cast<size_t>(n * size_of(from)));
    return;
  }
  const int64_t done = convert_vectors(from, in, to, out, n);
  visit_dtype(from, [&]<class From>(std::type_identity<From>) {
    visit_dtype(to, [&]<class To>(std::type_identity<To>) {
      const From* source = static_cast<const From*>(in);
      To* target = static_cast<To*>(out);
      for (int64_t i = done; i < n; ++i) target[i] = convert<To>(source[i]);
    });
  });
}

}  // namespace tapehead
#endif  // HWY_ONCE
