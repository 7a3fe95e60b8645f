// Vector functions and loops over rows, for float and double, inside HWY_NAMESPACE (simd.h shows how):
//
//   const hn::ScalableTag<float> d;
//   Map(d, n, y, [&](auto v) HWY_ATTR { return Exp(d, v); }, x);                        // y_i = exp(x_i)
//   double s = Sum(d, n, [&](auto u, auto v) HWY_ATTR { return hn::Mul(u, v); }, a, b);  // s = Σ a_i · b_i
//   double z = MapSum(d, n, y, [&](auto v) HWY_ATTR { return Exp(d, hn::Sub(v, hn::Set(d, m))); }, x);
//   float m = Largest(d, n, x);
//
// The elements behind the last full vector go through the same vector function in a padded one, so an
// element's result depends on its value alone, never on its position. Sums depend on n and the instruction
// set alone. Errors are in units in the last place (ulp) of the exact result. Arguments may have any value;
// a NaN gives a NaN.

// Highway's idiom: included once for each instruction set.
#if defined(TAPEHEAD_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TAPEHEAD_SIMD_MATH_INL_H_
#undef TAPEHEAD_SIMD_MATH_INL_H_
#else
#define TAPEHEAD_SIMD_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tapehead/backends/activations.h"

HWY_BEFORE_NAMESPACE();
namespace tapehead::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// ---- Loops

/// The first `count` < Lanes(d) elements at p, and `pad` behind them.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadTail(D d, const T* p, int64_t count, T pad = 0) {
  HWY_ALIGN T lanes[hn::MaxLanes(d)];
  hn::Store(hn::Set(d, pad), d, lanes);
  for (int64_t i = 0; i < count; ++i) lanes[i] = p[i];
  return hn::Load(d, lanes);
}

/// The first `count` < Lanes(d) elements of v to p.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void StoreTail(D d, hn::Vec<D> v, T* p, int64_t count) {
  HWY_ALIGN T lanes[hn::MaxLanes(d)];
  hn::Store(v, d, lanes);
  for (int64_t i = 0; i < count; ++i) p[i] = lanes[i];
}

/// y_i = f(x_i, ...) for i < n. y may be one of the inputs.
template <class D, class F, class T = hn::TFromD<D>, class... In>
HWY_INLINE void Map(D d, int64_t n, T* y, F&& f, const In*... x) {
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + step <= n; i += step) hn::StoreU(f(hn::LoadU(d, x + i)...), d, y + i);
  if (i < n) StoreTail(d, f(LoadTail(d, x + i, n - i)...), y + i, n - i);
}

/// The sum of the vectors full(i), which stand for the elements from i on, and of the first lanes of
/// tail(i, count) behind the last full one: lanes add up in T over blocks of 32 vectors, blocks in double.
template <class D, class Full, class Tail>
HWY_INLINE double SumBlocks(D d, int64_t n, Full&& full, Tail&& tail) {
  constexpr int64_t kBlock = 32;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  double sum = 0;
  int64_t i = 0;
  while (i + step <= n) {
    auto block = hn::Zero(d);
    for (const int64_t end = std::min(n - step, i + (kBlock - 1) * step); i <= end; i += step)
      block = hn::Add(block, full(i));
    sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, block)));
  }
  if (i < n) {
    const auto last = hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(n - i)), tail(i, n - i));
    sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, last)));
  }
  return sum;
}

/// Σ f(x_i, ...) for i < n.
template <class D, class F, class... In>
HWY_INLINE double Sum(D d, int64_t n, F&& f, const In*... x) {
  return SumBlocks(
      d, n, [&](int64_t i) HWY_ATTR { return f(hn::LoadU(d, x + i)...); },
      [&](int64_t i, int64_t count) HWY_ATTR { return f(LoadTail(d, x + i, count)...); });
}

/// Map, and the sum of what it wrote.
template <class D, class F, class T = hn::TFromD<D>, class... In>
HWY_INLINE double MapSum(D d, int64_t n, T* y, F&& f, const In*... x) {
  return SumBlocks(
      d, n,
      [&](int64_t i) HWY_ATTR {
        const auto v = f(hn::LoadU(d, x + i)...);
        hn::StoreU(v, d, y + i);
        return v;
      },
      [&](int64_t i, int64_t count) HWY_ATTR {
        const auto v = f(LoadTail(d, x + i, count)...);
        StoreTail(d, v, y + i, count);
        return v;
      });
}

/// The largest x_i; a NaN if there is one; -∞ of none.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE T Largest(D d, int64_t n, const T* x) {
  constexpr T kLowest = -std::numeric_limits<T>::infinity();
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  auto largest = hn::Set(d, kLowest);
  auto poison = hn::Zero(d);  // NaN where one was seen
  const auto take = [&](auto v) HWY_ATTR {
    largest = hn::IfThenElse(hn::Gt(v, largest), v, largest);
    poison = hn::IfThenElse(hn::IsNaN(v), v, poison);
  };
  int64_t i = 0;
  for (; i + step <= n; i += step) take(hn::LoadU(d, x + i));
  if (i < n) take(LoadTail(d, x + i, n - i, kLowest));
  HWY_ALIGN T lanes[2][hn::MaxLanes(d)];
  hn::Store(largest, d, lanes[0]);
  hn::Store(poison, d, lanes[1]);
  T result = kLowest;
  for (int64_t k = 0; k < step; ++k) {
    if (lanes[1][k] != lanes[1][k]) return lanes[1][k];
    if (lanes[0][k] > result) result = lanes[0][k];
  }
  return result;
}

// ---- Functions

/// v within [low, high]; NaN stays.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Clamp(D d, V v, double low, double high) {
  using T = hn::TFromD<D>;
  const V lo = hn::Set(d, static_cast<T>(low)), hi = hn::Set(d, static_cast<T>(high));
  return hn::IfThenElse(hn::Lt(v, lo), lo, hn::IfThenElse(hn::Gt(v, hi), hi, v));
}

/// Σ coefficients[k] · v^k.
template <class D, size_t N, class V = hn::Vec<D>>
HWY_INLINE V Polynomial(D d, V v, const double (&coefficients)[N]) {
  using T = hn::TFromD<D>;
  V sum = hn::Set(d, static_cast<T>(coefficients[N - 1]));
  for (size_t k = N - 1; k-- > 0;) sum = hn::MulAdd(sum, v, hn::Set(d, static_cast<T>(coefficients[k])));
  return sum;
}

/// What exp and tanh need to know of a floating format.
template <class T>
struct ExpFormat;

template <>
struct ExpFormat<float> {
  static constexpr int kFraction = 23, kBias = 127;
  static constexpr double kLow = -104, kHigh = 89;  // exp rounds to 0 below, to ∞ above
  static constexpr double kTanhOne = 10;            // tanh rounds to 1 from here on
  static constexpr float kRound = 0x1.8p23f;        // adding it leaves the nearest integer in the lowest bits
  // ln 2 in two parts; the first has so few bits that its product with an exponent is exact.
  static constexpr float kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cf8p-20f;
  // (e^r - 1 - r) / r² on |r| <= ln 2 / 2, by Taylor: the first term left out is below 2^-27.
  static constexpr double kTaylor[] = {1. / 2, 1. / 6, 1. / 24, 1. / 120, 1. / 720, 1. / 5040};
};

template <>
struct ExpFormat<double> {
  static constexpr int kFraction = 52, kBias = 1023;
  static constexpr double kLow = -746, kHigh = 710;
  static constexpr double kTanhOne = 22;
  static constexpr double kRound = 0x1.8p52;
  static constexpr double kLn2High = 0x1.62e42fefap-1, kLn2Low = 0x1.cf79abc9e3b3ap-40;
  // The first term left out is below 2^-57.
  static constexpr double kTaylor[] = {1. / 2,       1. / 6,        1. / 24,        1. / 120,
                                       1. / 720,     1. / 5040,     1. / 40320,     1. / 362880,
                                       1. / 3628800, 1. / 39916800, 1. / 479001600, 1. / 6227020800};
};

/// 2^k for integers k that are exponents of normal numbers.
template <class D, class I>
HWY_INLINE hn::Vec<D> PowerOfTwo(D d, I k) {
  using Format = ExpFormat<hn::TFromD<D>>;
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, hn::ShiftLeft<Format::kFraction>(hn::Add(k, hn::Set(di, Format::kBias))));
}

/// Splits v = n · ln 2 + r, |r| <= ln 2 / 2 (Cody and Waite, 1980): returns n, and e^r - 1 in `p`.
template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> ReduceExp(D d, V v, V& p) {
  using T = hn::TFromD<D>;
  using Format = ExpFormat<T>;
  const hn::RebindToSigned<D> di;
  const V shift = hn::Set(d, Format::kRound);
  const V shifted = hn::MulAdd(v, hn::Set(d, static_cast<T>(1.4426950408889634)), shift);  // v / ln 2
  const V n = hn::Sub(shifted, shift);
  const V r =
      hn::NegMulAdd(n, hn::Set(d, Format::kLn2Low), hn::NegMulAdd(n, hn::Set(d, Format::kLn2High), v));
  p = hn::MulAdd(hn::Mul(r, r), Polynomial(d, r, Format::kTaylor), r);
  return hn::Sub(hn::BitCast(di, shifted), hn::BitCast(di, shift));
}

/// e^v, within 2 ulp, subnormal results and overflow to ∞ included.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V v) {
  using T = hn::TFromD<D>;
  V p;
  const auto n = ReduceExp(d, Clamp(d, v, ExpFormat<T>::kLow, ExpFormat<T>::kHigh), p);
  // In two steps: 2^n alone may be too large or too small for the format.
  const auto half = hn::ShiftRight<1>(n);
  const V y = hn::Add(hn::Set(d, T{1}), p);
  return hn::Mul(hn::Mul(y, PowerOfTwo(d, half)), PowerOfTwo(d, hn::Sub(n, half)));
}

/// tanh v = -q / (q + 2) with q = e^(-2|v|) - 1, within 3 ulp.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Tanh(D d, V v) {
  using T = hn::TFromD<D>;
  const V magnitude = Clamp(d, hn::Abs(v), 0, ExpFormat<T>::kTanhOne);
  V p;
  const auto n = ReduceExp(d, hn::Mul(magnitude, hn::Set(d, T{-2})), p);
  const V scale = PowerOfTwo(d, n);
  const V q = hn::MulAdd(scale, p, hn::Sub(scale, hn::Set(d, T{1})));
  return hn::CopySign(hn::Div(hn::Neg(q), hn::Add(q, hn::Set(d, T{2}))), v);
}

/// σ(v) = 1 / (1 + e^-v), within 3 ulp in both tails, and σ'(v) = σ(v) · σ(-v) in `slope`.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V v, V& slope) {
  const V one = hn::Set(d, hn::TFromD<D>{1});
  const V e = Exp(d, hn::Neg(hn::Abs(v)));  // never overflows
  const V large = hn::Div(one, hn::Add(one, e)), small = hn::Mul(e, large);
  slope = hn::Mul(large, small);
  return hn::IfThenElse(hn::Lt(v, hn::Zero(d)), small, large);
}

/// What the normal distribution needs to know of a floating format.
template <class T>
struct NormalFormat;

// (1 + a) · e^(a²/2) · Φ(-a) as a polynomial in t = (a - 4) / (a + 4), for a in [0, kEnd], beyond which Φ(-a)
// rounds to 0: interpolated at Chebyshev's nodes, after Shepherd and Laframboise, "Chebyshev approximation of
// (1 + 2x)exp(x²)erfc x in 0 <= x < ∞", Mathematics of Computation 36 (1981).

template <>
struct NormalFormat<float> {
  static constexpr double kEnd = 15;
  static constexpr uint32_t kUpperHalf = 0xfffff000;  // a fraction so short that its square is exact
  static constexpr double kTail[] = {0.472053207,   -0.0967034666,  0.013999614,    0.0285999845,
                                     -0.0321975298, 0.017939979,    -0.00500321446, -0.000302174213,
                                     0.00069159216, -6.35273129e-5, -7.28742662e-5};
};

template <>
struct NormalFormat<double> {
  static constexpr double kEnd = 39;
  static constexpr uint64_t kUpperHalf = 0xfffffffff8000000;
  static constexpr double kTail[] = {
      0.47205320650984468,    -0.096703477326525797,  0.013999634724425472,   0.028600364053549596,
      -0.032197837428089432,  0.017936097479712202,   -0.0050023785909563175, -0.00028562309851940965,
      0.00069489710345251774, -9.4430249758017602e-5, -8.7853175428733456e-5, 2.125003107651531e-5,
      1.3626831951316531e-5,  -3.4321503281806613e-6, -2.6128008880784495e-6, 4.0440838412846273e-7,
      5.5181112912973831e-7,  1.5239116000050703e-9,  -1.1079709664950842e-7, -1.9905745862095475e-8,
      1.7521103709920271e-8,  6.2093547342817355e-9,  -1.5074647932399069e-9, -7.7312869080267869e-10};
};

/// Φ(v) = (1 + erf(v / sqrt 2)) / 2, within 4 ulp in both tails, and the density Φ'(v) in `density`.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V NormalCdf(D d, V v, V& density) {
  using T = hn::TFromD<D>;
  const hn::RebindToUnsigned<D> du;
  const V one = hn::Set(d, T{1}), four = hn::Set(d, T{4});
  const V a = Clamp(d, hn::Abs(v), 0, NormalFormat<T>::kEnd);
  // a² = square + rest: in the tail the rounding of a² alone would cost many ulp.
  const V high = hn::BitCast(d, hn::And(hn::BitCast(du, a), hn::Set(du, NormalFormat<T>::kUpperHalf)));
  const V square = hn::Mul(a, a);
  const V rest = hn::MulAdd(hn::Add(a, high), hn::Sub(a, high), hn::Sub(hn::Mul(high, high), square));
  const V half = hn::Set(d, T{-0.5});
  V e = Exp(d, hn::Mul(square, half));
  e = hn::MulAdd(e, hn::Mul(rest, half), e);
  density = hn::Mul(e, hn::Set(d, static_cast<T>(kNormalDensity)));
  const V t = hn::Div(hn::Sub(a, four), hn::Add(a, four));
  const V tail = hn::Div(hn::Mul(e, Polynomial(d, t, NormalFormat<T>::kTail)), hn::Add(one, a));
  return hn::IfThenElse(hn::Lt(v, hn::Zero(d)), tail, hn::Sub(one, tail));
}

/// What log needs to know of a floating format.
template <class T>
struct LogFormat;

// Of 2 · atanh(s) / s - 2 in z = s² <= (3 - 2 · sqrt 2)², by Taylor: Σ 2 / (2k + 1) · z^k, k >= 1.

template <>
struct LogFormat<float> {
  static constexpr float kSubnormal = 0x1p24f;  // makes subnormal numbers normal
  static constexpr int kSubnormalBits = 24;
  static constexpr double kTaylor[] = {2. / 3, 2. / 5, 2. / 7, 2. / 9, 2. / 11};
};

template <>
struct LogFormat<double> {
  static constexpr double kSubnormal = 0x1p54;
  static constexpr int kSubnormalBits = 54;
  static constexpr double kTaylor[] = {2. / 3,  2. / 5,  2. / 7,  2. / 9,  2. / 11,
                                       2. / 13, 2. / 15, 2. / 17, 2. / 19, 2. / 21};
};

/// ln v, within 2 ulp: v = m · 2^k with m in [sqrt ½, sqrt 2), and ln m = 2 · atanh(s) with
/// s = (m - 1) / (m + 1).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Log(D d, V v) {
  using T = hn::TFromD<D>;
  using Format = ExpFormat<T>;
  const hn::RebindToSigned<D> di;
  const V one = hn::Set(d, T{1}), zero = hn::Zero(d);
  const auto subnormal = hn::Lt(v, hn::Set(d, std::numeric_limits<T>::min()));
  const auto bits =
      hn::BitCast(di, hn::IfThenElse(subnormal, hn::Mul(v, hn::Set(d, LogFormat<T>::kSubnormal)), v));
  const auto root_half = hn::BitCast(di, hn::Set(d, static_cast<T>(0.70710678118654752)));
  const auto k = hn::ShiftRight<Format::kFraction>(hn::Sub(bits, root_half));
  const V m = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<Format::kFraction>(k)));
  const V shift = hn::Set(d, Format::kRound);
  V exponent = hn::Sub(hn::BitCast(d, hn::Add(k, hn::BitCast(di, shift))), shift);
  exponent = hn::Sub(exponent,
                     hn::IfThenElseZero(subnormal, hn::Set(d, static_cast<T>(LogFormat<T>::kSubnormalBits))));

  // ln m = f - (f²/2 - s · (f²/2 + R)) with R = 2 · atanh(s) / s - 2: the leading term is exact.
  const V f = hn::Sub(m, one), half_square = hn::Mul(hn::Mul(f, f), hn::Set(d, T{0.5}));
  const V s = hn::Div(f, hn::Add(m, one)), z = hn::Mul(s, s);
  const V r = hn::Mul(z, Polynomial(d, z, LogFormat<T>::kTaylor));
  const V low = hn::MulAdd(exponent, hn::Set(d, Format::kLn2Low), hn::Mul(s, hn::Add(half_square, r)));
  const V y = hn::MulAdd(exponent, hn::Set(d, Format::kLn2High), hn::Sub(f, hn::Sub(half_square, low)));

  const V infinity = hn::Set(d, std::numeric_limits<T>::infinity());
  const V outside =
      hn::IfThenElse(hn::Eq(v, zero), hn::Neg(infinity),
                     hn::IfThenElse(hn::Eq(v, infinity), v, hn::Set(d, std::numeric_limits<T>::quiet_NaN())));
  return hn::IfThenElse(hn::And(hn::Gt(v, zero), hn::Lt(v, infinity)), y, outside);
}

}  // namespace tapehead::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
