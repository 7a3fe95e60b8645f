#include "tapehead/ops/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "tapehead/tests/golden_cases.h"
#include "tapehead/tests/ops/instruction_sets.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct BinaryOp {
  const char* name;
  Tensor (*apply)(const Tensor&, const Tensor&);
};
constexpr BinaryOp kBinary[] = {{"add", add}, {"sub", sub}, {"mul", mul}, {"div", div}};

struct UnaryOp {
  const char* name;
  Tensor (*apply)(const Tensor&);
  long double (*exact)(long double);
  /// Takes all numbers; those above 0 alone; or all, with a slope that goes from exactly 0 to exactly 1.
  enum { anything, of_positive, rectifier } kind = anything;
  bool golden = true;  ///< PyTorch's numbers of it are in ops.safetensors; those of `exact` do without
};

long double exact_sigmoid(long double u) {
  return u < 0 ? std::exp(u) / (1 + std::exp(u)) : 1 / (1 + std::exp(-u));
}

// The argument of gelu_tanh's sigmoid: twice that of its tanh.
long double gate(long double x) {
  return 2 * std::sqrt(2 / std::numbers::pi_v<long double>) * (x + 0.044715L * x * x * x);
}

// A row here is all that a new function of one element needs to be tested: values, gradient, layouts, dtypes,
// NaN. Where its formula could overflow or cancel, values far out are up to a test of its own.
const UnaryOp kUnary[] = {
    {"neg", neg, [](long double x) { return -x; }},
    {"exp", exp, [](long double x) { return std::exp(x); }},
    {"log", log, [](long double x) { return std::log(x); }, UnaryOp::of_positive},
    {"tanh", tanh, [](long double x) { return std::tanh(x); }},
    {"sqrt", sqrt, [](long double x) { return std::sqrt(x); }, UnaryOp::of_positive},
    {"relu", relu, [](long double x) { return x < 0 ? 0 : x; }, UnaryOp::rectifier},
    {"gelu", gelu, [](long double x) { return x * std::erfc(-x / std::numbers::sqrt2_v<long double>) / 2; },
     UnaryOp::rectifier},
    {"gelu_tanh", gelu_tanh, [](long double x) { return x * exact_sigmoid(gate(x)); }, UnaryOp::rectifier},
    {"silu", silu, [](long double x) { return x * exact_sigmoid(x); }, UnaryOp::rectifier},
};

// Values away from 0, of both signs unless `positive`: where divisions, log and relu's corner are harmless.
Tensor safe_values(const Shape& shape, uint64_t seed, bool positive) {
  std::vector<double> values = random_tensor(shape, seed).to_vector<double>();
  for (double& v : values) v = positive ? 1.5 + v : std::copysign(0.1 + 2 * std::abs(v), v);
  return Tensor::from<double>(shape, values);
}

// ---- Values and gradients

TEST(Binary, PyTorch) {
  for (const BinaryOp& op : kBinary) {
    for (const GoldenCase& c : golden_cases("ops.safetensors", op.name)) {
      expect_golden(c, op.apply(c.input("a"), c.input("b")), 1e-14, 1e-14);
    }
  }
}

TEST(Unary, PyTorch) {
  for (const UnaryOp& op : kUnary) {
    if (!op.golden) continue;
    for (const GoldenCase& c : golden_cases("ops.safetensors", op.name))
      expect_golden(c, op.apply(c.input("x")), 1e-14, 1e-14);
  }
}

TEST(Binary, GradientsEqualDifferences) {
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{2, 3}, {2, 3}}, {{2, 3}, {}},     {{}, {2, 3}},        {{}, {}},
      {{2, 3}, {3}},    {{1, 3}, {2, 1}}, {{2, 1, 3}, {4, 1}}, {{1}, {1, 1}},
      {{0, 3}, {3}},    {{2, 1}, {2, 0}}, {{2, 3, 4}, {3, 1}}};
  for (const BinaryOp& op : kBinary) {
    const auto function = [&](const std::vector<Tensor>& x) { return op.apply(x[0], x[1]); };
    for (const auto& [a, b] : shapes) {
      SCOPED_TRACE(fmt::format("{} of {} and {}", op.name, a, b));
      const Tensor u = safe_values(a, 1, false), v = safe_values(b, 2, false);
      expect_gradcheck(function, {u.clone().set_requires_grad(), v.clone().set_requires_grad()});
      expect_gradcheck(function, {u, v.clone().set_requires_grad()});
      expect_gradcheck(function, {u.clone().set_requires_grad(), v});
    }
    const Tensor u = safe_values({6, 4}, 1, false), v = safe_values({3, 4}, 2, false);
    expect_gradcheck(function, {transpose(slice(u, 0, 0, 6, 2), 0, 1).set_requires_grad(),
                                transpose(v, 0, 1).set_requires_grad()});
    // One tensor on both sides: its gradients add up.
    expect_gradcheck([&](const std::vector<Tensor>& x) { return op.apply(x[0], x[0]); },
                     {v.clone().set_requires_grad()});
  }
}

TEST(Unary, GradientsEqualDifferences) {
  for (const UnaryOp& op : kUnary) {
    const auto function = [&](const std::vector<Tensor>& x) { return op.apply(x[0]); };
    for (const Shape& shape : {Shape{2, 3}, Shape{}, Shape{1, 1}, Shape{0, 2}, Shape{37}}) {
      SCOPED_TRACE(fmt::format("{} of {}", op.name, shape));
      expect_gradcheck(function,
                       {safe_values(shape, 3, op.kind == UnaryOp::of_positive).set_requires_grad()});
    }
    const Tensor x = safe_values({6, 5}, 4, op.kind == UnaryOp::of_positive);
    expect_gradcheck(function, {transpose(slice(x, 0, 1, 6, 2), 0, 1).set_requires_grad()});
    expect_gradcheck(
        [&](const std::vector<Tensor>& v) {
          return op.apply(expand(v[0], {3, 5}));
        },
        {select(x, 0, 2).set_requires_grad()});
  }
}

TEST(Elementwise, OperatorsAndNumbers) {
  const Tensor x = Tensor::from<float>({2}, {3, -4});
  EXPECT_EQ((x + x * 2.0 - x / 4.0).to_vector<double>(), (std::vector<double>{8.25, -11}));
  EXPECT_EQ((x - 1.0).dtype(), DType::f32);
}

TEST(Elementwise, Errors) {
  const Tensor a({2, 3}), b({4});
  for (const BinaryOp& op : kBinary) {
    expect_error<ValueError>([&] { op.apply(a, b); },
                             fmt::format("[{}] shapes (2, 3) and (4,) do not broadcast", op.name));
    expect_error<TypeError>([&] { op.apply(a, Tensor({3}, DType::f64)); },
                            fmt::format("[{}] takes tensors of one floating dtype", op.name));
    expect_error<TypeError>([&] { op.apply(Tensor({3}, DType::i64), Tensor({3}, DType::i64)); }, "i64");
  }
  for (const UnaryOp& op : kUnary) {
    expect_error<TypeError>([&] { op.apply(Tensor({3}, DType::i32)); },
                            fmt::format("[{}] takes a floating tensor, not i32", op.name));
  }
}

// ---- Accuracy

// The distance of `got` from `exact`, in units in the last place of the exact result rounded to T.
template <class T>
double ulps(T got, long double exact) {
  const T rounded = static_cast<T>(exact);
  if (std::isnan(rounded) || std::isinf(rounded)) {
    const bool same = std::isnan(rounded) ? std::isnan(got) : got == rounded;
    return same ? 0 : kInfinity;
  }
  int exponent;
  std::frexp(rounded, &exponent);
  const int unit = std::max(exponent - std::numeric_limits<T>::digits,
                            std::numeric_limits<T>::min_exponent - std::numeric_limits<T>::digits);
  const double distance =
      static_cast<double>(std::abs(static_cast<long double>(got) - exact) * std::ldexp(1.0L, -unit));
  return std::isnan(distance) ? kInfinity : distance;
}

// Numbers of all sizes, with subnormal ones, infinities and NaN, and a dense sweep where activations bend.
template <class T>
std::vector<T> sweep() {
  std::vector<T> x = {0, -T(0), static_cast<T>(kInfinity), static_cast<T>(-kInfinity), static_cast<T>(kNaN)};
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  constexpr Bits kStep = std::numeric_limits<Bits>::max() / 20000 | 1;
  for (Bits i = 0; i < 20000; ++i) x.push_back(std::bit_cast<T>(static_cast<Bits>(i * kStep)));
  for (const double width : {1.0, 12.0, 110.0, 800.0}) {
    for (int i = -2500; i <= 2500; ++i) x.push_back(static_cast<T>(width * i / 2500));
  }
  return x;
}

template <class T>
void expect_accurate(const UnaryOp& op) {
  const std::vector<T> x = sweep<T>();
  std::vector<long double> exact;
  for (const T v : x) exact.push_back(op.exact(v));
  const Tensor input = Tensor::from<T>({static_cast<int64_t>(x.size())}, x);
  for_each_instruction_set([&] {
    const std::vector<T> y = op.apply(input).template to_vector<T>();
    double worst = 0;
    T worst_x = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      double error = ulps(y[i], exact[i]);
      // In its lower tail, gelu_tanh depends on the rounding of its argument u as e^u does.
      if (std::string_view(op.name) == "gelu_tanh" && x[i] < 0)
        error /= 1 + static_cast<double>(std::abs(gate(x[i])));
      // x times a subnormal number, whose last digit is coarse.
      if (std::abs(y[i]) < std::numeric_limits<T>::min() * std::abs(x[i]))
        error /= 1 + std::abs(static_cast<double>(x[i]));
      if (error > worst) {
        worst = error;
        worst_x = x[i];
      }
    }
    EXPECT_LE(worst, std::string_view(op.name) == "gelu" ? 6 : 4) << op.name << " of " << worst_x;
  });
}

TEST(Unary, WithinAFewUlps) {
  for (const UnaryOp& op : kUnary) {
    expect_accurate<float>(op);
    expect_accurate<double>(op);
  }
}

// Gradients against those of f64, which differences have checked.
TEST(Unary, GradientsInF32) {
  std::vector<float> x;
  for (int i = -4000; i <= 4000; ++i) x.push_back(static_cast<float>(i) / 250);
  for_each_instruction_set([&] {
    for (const UnaryOp& op : kUnary) {
      const auto gradient = [&](DType dtype) {
        Tensor leaf = Tensor::from<float>({static_cast<int64_t>(x.size())}, x).to(dtype).clone();
        leaf.set_requires_grad();
        backward(op.apply(leaf), Tensor::full(leaf.shape(), 1, dtype));
        return leaf.grad().to(DType::f64);
      };
      expect_close(gradient(DType::f32), gradient(DType::f64), 4e-6, 1e-6, op.name);
    }
  });
}

// A polynomial of x overflowed, and ∞ · 0 made the gradient NaN.
TEST(Unary, DerivativesFarOut) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const UnaryOp& op : kUnary) {
      if (op.kind != UnaryOp::rectifier) continue;
      Tensor x = Tensor::from<double>({4}, {-1e38, 1e38, -1e4, 1e4}).to(dtype).clone().set_requires_grad();
      backward(op.apply(x), Tensor::full({4}, 1, dtype));
      EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0, 1, 0, 1})) << op.name;
    }
  }
}

TEST(Unary, KeepsNaNToItself) {
  for (const UnaryOp& op : kUnary) {
    const std::vector<double> y = op.apply(Tensor::from<double>({3}, {1, kNaN, 2})).to_vector<double>();
    EXPECT_TRUE(!std::isnan(y[0]) && std::isnan(y[1]) && !std::isnan(y[2])) << op.name;
    Tensor x = Tensor::from<double>({3}, {1, 1, 2}).set_requires_grad();
    backward(op.apply(x), Tensor::from<double>({3}, {1, kNaN, 2}));
    const std::vector<double> g = x.grad().to_vector<double>();
    EXPECT_TRUE(!std::isnan(g[0]) && std::isnan(g[1]) && !std::isnan(g[2])) << op.name;
  }
}

// ---- Layout

// The elements behind the last full vector, other alignments and cuts between threads: none changes a bit.
TEST(Unary, ResultDoesNotDependOnPosition) {
  constexpr int64_t kCount = 33000;  // enough for two threads
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Tensor positive = safe_values({kCount}, 5, true).to(dtype),
                 any = safe_values({kCount}, 5, false).to(dtype);
    const Tensor g = random_tensor({kCount}, 6, 1, dtype);
    const auto expect_same = [&](const UnaryOp& op) {
      const auto forward_and_gradient = [&](int64_t begin, int64_t end) {
        Tensor leaf =
            slice(op.kind == UnaryOp::of_positive ? positive : any, 0, begin, end).set_requires_grad();
        const Tensor y = op.apply(leaf);
        backward(y, slice(g, 0, begin, end));
        return std::pair(y.to_vector<double>(), leaf.grad().to_vector<double>());
      };
      const auto [y, gx] = forward_and_gradient(0, kCount);
      for (const int64_t begin : {1, 16501}) {
        for (const int64_t length : {1, 17, 700}) {
          const auto [part, part_gx] = forward_and_gradient(begin, begin + length);
          EXPECT_TRUE(std::equal(part.begin(), part.end(), y.begin() + begin))
              << op.name << ' ' << begin << ' ' << length;
          EXPECT_TRUE(std::equal(part_gx.begin(), part_gx.end(), gx.begin() + begin))
              << op.name << ' ' << begin << ' ' << length;
        }
      }
    };
    for_each_instruction_set([&] {
      for (const UnaryOp& op : kUnary) expect_same(op);
    });
  }
}

TEST(Elementwise, StridedEqualsDense) {
  const Tensor x = transpose(safe_values({70, 30}, 7, true), 0, 1),
               y = slice(safe_values({30, 140}, 8, true), 1, 1, 140, 2);
  for (const UnaryOp& op : kUnary) {
    EXPECT_EQ(op.apply(x).to_vector<double>(), op.apply(x.contiguous()).to_vector<double>()) << op.name;
  }
  for (const BinaryOp& op : kBinary) {
    EXPECT_EQ(op.apply(x, y).to_vector<double>(),
              op.apply(x.contiguous(), y.contiguous()).to_vector<double>())
        << op.name;
    EXPECT_EQ(op.apply(x, select(y, 0, 3)).to_vector<double>(),
              op.apply(x, expand(select(y, 0, 3), {30, 70}).contiguous()).to_vector<double>())
        << op.name;
  }
}

// 16-bit results are those of f32, rounded once.
TEST(Elementwise, HalfPrecision) {
  for (const DType half : {DType::f16, DType::bf16}) {
    const Tensor a = safe_values({11, 70}, 9, true).to(half), b = safe_values({70}, 10, true).to(half);
    const Tensor wide_a = a.to(DType::f32), wide_b = b.to(DType::f32);
    for (const UnaryOp& op : kUnary) {
      EXPECT_EQ(op.apply(a).to_vector<float>(), op.apply(wide_a).to(half).to_vector<float>()) << op.name;
    }
    for (const BinaryOp& op : kBinary) {
      EXPECT_EQ(op.apply(a, b).to_vector<float>(), op.apply(wide_a, wide_b).to(half).to_vector<float>())
          << op.name;
    }
  }
}

// Hazard: divided by the divisor's square, a gradient is 0 or infinite where the square alone is out of range.
TEST(Elementwise, DivHasAGradientWhereTheDivisorsSquareIsOutOfRange) {
  const auto gradient = [](double a, double b, DType dtype) {
    const Tensor x = Tensor::full({1}, a, dtype), y = Tensor::full({1}, b, dtype).set_requires_grad();
    backward(x / y, Tensor::full({1}, 1, dtype));
    return y.grad().item();
  };
  EXPECT_NEAR(gradient(600, 300, DType::f16), -1 / 150., 1e-5);
  EXPECT_NEAR(gradient(1e-25, 1e-25, DType::f32) / -1e25, 1, 1e-6);
  EXPECT_NEAR(gradient(1e25, 1e25, DType::f32) / -1e-25, 1, 1e-6);
}

}  // namespace
}  // namespace tapehead
