// The optimisers' steps and the norm of gradients. A whole training run against PyTorch is
// tests/models' task.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>

#include "tapehead/backends/backend.h"
#include "tapehead/tests/golden_cases.h"
#include "tapehead/tests/ops/instruction_sets.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

struct State {
  std::vector<Tensor> p, g, m, v;
};

// Parameters of several sizes, whole vectors or not, empty, and long enough for every thread.
State make_state(DType dtype) {
  State s;
  for (const Shape& shape : {Shape{3, 5}, Shape{}, Shape{0, 4}, Shape{64}, Shape{300, 257}, Shape{1}}) {
    const uint64_t seed = 10 * s.p.size();
    s.p.push_back(random_tensor(shape, seed + 1, 1, dtype));
    s.g.push_back(random_tensor(shape, seed + 2, 1, dtype));
    s.m.push_back(random_tensor(shape, seed + 3, 0.1, dtype));
    Tensor v = random_tensor(shape, seed + 4, 0.1, DType::f64);
    double* numbers = v.mutable_data<double>();
    for (int64_t i = 0; i < v.numel(); ++i) numbers[i] *= numbers[i];
    s.v.push_back(v.to(dtype));
  }
  return s;
}

const AdamW kNumbers{.learning_rate = 0.01,
                     .beta1 = 0.9,
                     .beta2 = 0.95,
                     .epsilon = 1e-8,
                     .weight_decay = 0.1,
                     .step = 3,
                     .gradient_scale = 0.5};

TEST(AdamWKernel, FollowsTheFormula) {
  for_each_instruction_set([] {
    for (const DType dtype : {DType::f64, DType::f32}) {
      State s = make_state(dtype);
      const State before = make_state(dtype);
      backend(Device{}).adamw(kNumbers, s.p, s.g, s.m, s.v, {});
      for (size_t k = 0; k < s.p.size(); ++k) {
        const auto p = before.p[k].to_vector<double>(), g = before.g[k].to_vector<double>();
        auto m = before.m[k].to_vector<double>(), v = before.v[k].to_vector<double>();
        std::vector<double> expected;
        for (size_t i = 0; i < p.size(); ++i) {
          const double gradient = 0.5 * g[i];
          m[i] = 0.9 * m[i] + (1 - 0.9) * gradient;
          v[i] = 0.95 * v[i] + (1 - 0.95) * gradient * gradient;
          const double m_hat = m[i] / (1 - std::pow(0.9, 3)), v_hat = v[i] / (1 - std::pow(0.95, 3));
          expected.push_back(p[i] * (1 - 0.01 * 0.1) - 0.01 * m_hat / (std::sqrt(v_hat) + 1e-8));
        }
        const double tolerance = 8 * epsilon(dtype);
        const std::string what = fmt::format("parameter {} of {}", k, name(dtype));
        const Shape& shape = s.p[k].shape();
        expect_close(s.p[k].to(DType::f64), Tensor::from<double>(shape, expected), tolerance, tolerance,
                     what);
        expect_close(s.m[k].to(DType::f64), Tensor::from<double>(shape, m), tolerance, tolerance, what);
        expect_close(s.v[k].to(DType::f64), Tensor::from<double>(shape, v), tolerance, tolerance, what);
        expect_close(s.g[k], before.g[k], 0, 0, what);
      }
    }
  });
}

// A gradient that was always zero moves its parameter by the decay alone: 0 / (sqrt(0) + epsilon), not 0 / 0.
TEST(AdamWKernel, ZeroGradient) {
  std::vector<Tensor> p = {Tensor::full({20}, 2)}, g = {Tensor::zeros({20})}, m = {Tensor::zeros({20})},
                      v = {Tensor::zeros({20})};
  AdamW numbers = kNumbers;
  numbers.weight_decay = 0;
  backend(Device{}).adamw(numbers, p, g, m, v, {});
  EXPECT_EQ(p[0].to_vector<float>(), std::vector<float>(20, 2));
}

TEST(AdamWKernel, CountsAsAChangeInPlace) {
  State s = make_state(DType::f32);
  const int64_t p = s.p[0].version(), m = s.m[0].version(), v = s.v[0].version(), g = s.g[0].version();
  backend(Device{}).adamw(kNumbers, s.p, s.g, s.m, s.v, {});
  EXPECT_GT(s.p[0].version(), p);
  EXPECT_GT(s.m[0].version(), m);
  EXPECT_GT(s.v[0].version(), v);
  EXPECT_EQ(s.g[0].version(), g);
}

TEST(AdamWKernel, SameForAnyNumberOfThreads) {
  const int before = omp_get_max_threads();
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    State s = make_state(DType::f32);
    backend(Device{}).adamw(kNumbers, s.p, s.g, s.m, s.v, {});
    results.push_back(s.p[4].to_vector<float>());
  }
  omp_set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

// Parameters and gradients of 16 bits, the rest f32; master weights that their parameters are rounded from.
struct HalfState : State {
  std::vector<Tensor> master;
};

HalfState make_half_state(DType dtype) {
  HalfState s;
  static_cast<State&>(s) = make_state(DType::f32);
  for (size_t k = 0; k < s.p.size(); ++k) {
    s.master.push_back(s.p[k]);
    s.p[k] = s.p[k].to(dtype);
    s.g[k] = s.g[k].to(dtype);
  }
  return s;
}

// Against the formula in f64, which sees the same 16-bit gradients, new ones in each of five steps.
TEST(AdamWKernel, StepsOnMasterWeightsAndRoundsThemIntoThe16BitParameters) {
  for_each_instruction_set([] {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      HalfState s = make_half_state(dtype);
      const size_t count = s.p.size();
      std::vector<std::vector<double>> p(count), m(count), v(count);
      for (size_t k = 0; k < count; ++k) {
        p[k] = s.master[k].to_vector<double>();
        m[k] = s.m[k].to_vector<double>();
        v[k] = s.v[k].to_vector<double>();
      }
      AdamW numbers = kNumbers;
      for (numbers.step = 1; numbers.step <= 5; ++numbers.step) {
        const auto t = static_cast<double>(numbers.step);
        for (size_t k = 0; k < count; ++k) {
          s.g[k] = random_tensor(s.p[k].shape(), 100 * k + static_cast<uint64_t>(numbers.step), 1, dtype);
          const auto g = s.g[k].to_vector<double>();
          for (size_t i = 0; i < p[k].size(); ++i) {
            const double gradient = 0.5 * g[i];
            m[k][i] = 0.9 * m[k][i] + 0.1 * gradient;
            v[k][i] = 0.95 * v[k][i] + 0.05 * gradient * gradient;
            const double m_hat = m[k][i] / (1 - std::pow(0.9, t)), v_hat = v[k][i] / (1 - std::pow(0.95, t));
            p[k][i] = p[k][i] * (1 - 0.01 * 0.1) - 0.01 * m_hat / (std::sqrt(v_hat) + 1e-8);
          }
        }
        backend(Device{}).adamw(numbers, s.p, s.g, s.m, s.v, s.master);
        for (size_t k = 0; k < count; ++k) {
          const double tolerance = 8 * t * epsilon(DType::f32);
          const std::string what = fmt::format("parameter {} of {}, step {}", k, name(dtype), t);
          const Shape& shape = s.p[k].shape();
          expect_close(s.master[k].to(DType::f64), Tensor::from<double>(shape, p[k]), tolerance, tolerance,
                       what);
          expect_close(s.m[k].to(DType::f64), Tensor::from<double>(shape, m[k]), tolerance, tolerance, what);
          expect_close(s.v[k].to(DType::f64), Tensor::from<double>(shape, v[k]), tolerance, tolerance, what);
          expect_close(s.p[k], s.master[k].to(dtype), 0, 0, what);
        }
      }
    }
  });
}

TEST(AdamWKernel, StepsOnMasterWeightsTheSameForAnyNumberOfThreads) {
  const int before = omp_get_max_threads();
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    HalfState s = make_half_state(DType::bf16);
    backend(Device{}).adamw(kNumbers, s.p, s.g, s.m, s.v, s.master);
    results.push_back(s.master[4].to_vector<float>());
  }
  omp_set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(AdamWKernel, CountsMasterWeightsAndTheirParametersAsChangedInPlace) {
  HalfState s = make_half_state(DType::bf16);
  const int64_t p = s.p[0].version(), master = s.master[0].version(), g = s.g[0].version();
  backend(Device{}).adamw(kNumbers, s.p, s.g, s.m, s.v, s.master);
  EXPECT_GT(s.p[0].version(), p);
  EXPECT_GT(s.master[0].version(), master);
  EXPECT_EQ(s.g[0].version(), g);
}

// ---- SGD

struct SgdCase {
  double momentum, decay;
  bool nesterov, decoupled;
};

constexpr SgdCase kSgdCases[] = {{0, 0, false, false},     {0, 0.1, false, false},  {0.9, 0, false, false},
                                 {0.9, 0.1, false, false}, {0.9, 0.1, true, false}, {0.9, 0.1, false, true},
                                 {0.9, 0.1, true, true}};

Sgd numbers_of(const SgdCase& c) {
  return {.learning_rate = 0.01,
          .momentum = c.momentum,
          .weight_decay = c.decay,
          .nesterov = c.nesterov,
          .decoupled = c.decoupled,
          .gradient_scale = 0.5};
}

// torch.optim.SGD's formula, for one element.
void sgd_in_f64(const SgdCase& c, double gradient, double& p, double& b) {
  double g = 0.5 * gradient;
  if (!c.decoupled) g += c.decay * p;
  b = c.momentum * b + g;
  if (c.decoupled) p *= 1 - 0.01 * c.decay;
  p -= 0.01 * (c.momentum == 0 ? g : c.nesterov ? g + c.momentum * b : b);
}

TEST(SgdKernel, FollowsTheFormula) {
  for_each_instruction_set([] {
    for (const DType dtype : {DType::f64, DType::f32}) {
      for (const SgdCase& c : kSgdCases) {
        State s = make_state(dtype);
        const State before = make_state(dtype);
        backend(Device{}).sgd(numbers_of(c), s.p, s.g, c.momentum > 0 ? std::span(s.m) : std::span<Tensor>(),
                              {});
        for (size_t k = 0; k < s.p.size(); ++k) {
          auto p = before.p[k].to_vector<double>(), b = before.m[k].to_vector<double>();
          const auto g = before.g[k].to_vector<double>();
          for (size_t i = 0; i < p.size(); ++i) sgd_in_f64(c, g[i], p[i], b[i]);
          const double tolerance = 8 * epsilon(dtype);
          const std::string what = fmt::format("parameter {} of {}, momentum {}", k, name(dtype), c.momentum);
          const Shape& shape = s.p[k].shape();
          expect_close(s.p[k].to(DType::f64), Tensor::from<double>(shape, p), tolerance, tolerance, what);
          if (c.momentum > 0)
            expect_close(s.m[k].to(DType::f64), Tensor::from<double>(shape, b), tolerance, tolerance, what);
          expect_close(s.g[k], before.g[k], 0, 0, what);
        }
      }
    }
  });
}

// 16-bit parameters with gradients of their dtype or of f32: stepped on their master weights, five times.
TEST(SgdKernel, StepsOnMasterWeightsAndRoundsThemIntoThe16BitParameters) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const DType gradients : {dtype, DType::f32}) {
      const SgdCase c{0.9, 0.1, true, false};
      HalfState s = make_half_state(dtype);
      std::vector<std::vector<double>> p, b;
      for (size_t k = 0; k < s.p.size(); ++k) {
        p.push_back(s.master[k].to_vector<double>());
        b.push_back(s.m[k].to_vector<double>());
      }
      for (uint64_t step = 1; step <= 5; ++step) {
        for (size_t k = 0; k < p.size(); ++k) {
          s.g[k] = random_tensor(s.p[k].shape(), 100 * k + step, 1, gradients);
          const auto g = s.g[k].to_vector<double>();
          for (size_t i = 0; i < p[k].size(); ++i) sgd_in_f64(c, g[i], p[k][i], b[k][i]);
        }
        backend(Device{}).sgd(numbers_of(c), s.p, s.g, s.m, s.master);
      }
      for (size_t k = 0; k < p.size(); ++k) {
        const std::string what = fmt::format("parameter {} of {} by {}", k, name(dtype), name(gradients));
        expect_close(s.master[k].to(DType::f64), Tensor::from<double>(s.p[k].shape(), p[k]), 4e-6, 4e-6,
                     what);
        expect_close(s.m[k].to(DType::f64), Tensor::from<double>(s.p[k].shape(), b[k]), 4e-6, 4e-6, what);
        expect_close(s.p[k], s.master[k].to(dtype), 0, 0, what);
      }
    }
  }
}

static double squared_norm(std::span<const Tensor> tensors) {
  Tensor y({}, DType::f64);
  backend(y).squared_norm(tensors, y);
  return y.item();
}

TEST(SquaredNorm, EveryDtype) {
  for_each_instruction_set([] {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      const State s = make_state(dtype);
      double expected = 0;
      for (const Tensor& t : s.g) {
        for (const double x : t.to_vector<double>()) expected += x * x;
      }
      EXPECT_NEAR(squared_norm(s.g), expected, 1e-12 * expected) << name(dtype);
    }
    EXPECT_EQ(squared_norm({}), 0);
  });
}

// In f32 the sum would stop at 2^24, and a square overflow.
TEST(SquaredNorm, SumsInDouble) {
  const std::vector<Tensor> ones = {Tensor::full({(1 << 24) + 5}, 1)}, large = {Tensor::full({7}, 1e30)};
  EXPECT_EQ(squared_norm(ones), (1 << 24) + 5);
  EXPECT_NEAR(squared_norm(large), 7e60, 1e54);
  const std::vector<Tensor> bad = {Tensor::full({40}, std::numeric_limits<double>::quiet_NaN())};
  EXPECT_TRUE(std::isnan(squared_norm(bad)));
}

TEST(SquaredNorm, SameForAnyNumberOfThreads) {
  const State s = make_state(DType::f32);
  const int before = omp_get_max_threads();
  std::vector<double> results;
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    results.push_back(squared_norm(s.g));
  }
  omp_set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

}  // namespace
}  // namespace tapehead
