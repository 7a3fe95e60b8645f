// What the CUDA backend does for a training step, beside the CPU's: optimisers, the norm of gradients,
// targets.
#include "tapehead/tests/backends/twin.h"

namespace tapehead {
namespace {

// Parameters, gradients, two moments and, for 16 bits, master weights of several tensors, one of which takes
// more than one block, and one none.
struct Step {
  std::vector<Twin> p, g, first, second, master;

  Step(DType dtype, DType g_dtype) {
    uint64_t seed = 1;
    for (const Shape& shape : {Shape({3, 7}), Shape({5000}), Shape({0})}) {
      p.push_back(Twin::random(shape, ++seed, 1, dtype));
      g.push_back(Twin::random(shape, ++seed, 1, g_dtype));
      first.push_back(Twin::random(shape, ++seed, 0.1, arithmetic_dtype(dtype)));
      second.emplace_back(random_tensor(shape, ++seed, 0.1).to(arithmetic_dtype(dtype)));
      for (Tensor x : {second.back().cpu, second.back().cuda}) backend(x).binary(Binary::mul, x, x, x);
      if (is_half(dtype)) master.emplace_back(p.back().cpu.to(DType::f32));
    }
  }

  void expect_agreement_of(const std::vector<Twin>& list, double rtol, const std::string& what) const {
    for (const Twin& x : list) expect_agreement(x, rtol, rtol, what);
  }
};

template <class Take>
std::vector<Tensor> taken(const Take& take, const std::vector<Twin>& list) {
  std::vector<Tensor> tensors;
  for (const Twin& x : list) tensors.push_back(take(x));
  return tensors;
}

TEST(CudaTraining, AdamW) {
  for (const DType dtype : kDTypes) {
    const Step s(dtype, dtype);
    on_both([&](Backend& device, const auto& take) {
      auto p = taken(take, s.p), m = taken(take, s.first), v = taken(take, s.second),
           master = taken(take, s.master);
      const AdamW numbers{.learning_rate = 0.01,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .epsilon = 1e-8,
                          .weight_decay = 0.1,
                          .step = 3,
                          .gradient_scale = 0.5};
      device.adamw(numbers, p, taken(take, s.g), m, v, master);
    });
    const std::string what(name(dtype));
    s.expect_agreement_of(s.p, tolerance(dtype), what + " parameter");
    for (const auto* list : {&s.first, &s.second, &s.master})
      s.expect_agreement_of(*list, tolerance(arithmetic_dtype(dtype)), what);
  }
}

TEST(CudaTraining, Sgd) {
  for (const DType dtype : kDTypes) {
    for (const double momentum : {0.0, 0.9}) {
      for (const bool decoupled : {false, true}) {
        const Step s(dtype, is_half(dtype) && decoupled ? DType::f32 : dtype);
        on_both([&](Backend& device, const auto& take) {
          auto p = taken(take, s.p), b = momentum > 0 ? taken(take, s.first) : std::vector<Tensor>(),
               master = taken(take, s.master);
          const Sgd numbers{.learning_rate = 0.01,
                            .momentum = momentum,
                            .weight_decay = 0.1,
                            .nesterov = momentum > 0 && decoupled,
                            .decoupled = decoupled,
                            .gradient_scale = 0.5};
          device.sgd(numbers, p, taken(take, s.g), b, master);
        });
        const std::string what = fmt::format("{} momentum {} {}", dtype, momentum, decoupled);
        s.expect_agreement_of(s.p, tolerance(dtype), what + " parameter");
        for (const auto* list : {&s.first, &s.master})
          s.expect_agreement_of(*list, tolerance(arithmetic_dtype(dtype)), what);
      }
    }
  }
}

TEST(CudaTraining, SquaredNorm) {
  for (const DType dtype : kDTypes) {
    const Step s(dtype, dtype);
    const Twin norm = Twin::result({}, DType::f64);
    on_both([&](Backend& device, const auto& take) {
      Tensor y = take(norm);
      device.squared_norm(taken(take, s.g), y);
    });
    expect_agreement(norm, 1e-12, 0, std::string(name(dtype)));
  }
}

// More rows than a block has threads.
TEST(CudaTraining, CrossEntropyTargets) {
  constexpr int64_t kRows = 2500, kClasses = 30;
  const Twin target(random_indices({kRows}, kClasses, 1)),
      token_weight = Twin::random({kRows}, 2, 1, DType::f64),
      class_weight = Twin::random({kClasses}, 3, 1, DType::f32);
  for (const Tensor& t : {target.cpu, target.cuda}) {
    for (int64_t r = 0; r < kRows; r += 7) set_element(t, r, -100);
  }
  for (const Tensor& w : {token_weight.cpu, token_weight.cuda}) {
    for (int64_t r = 0; r < kRows; r += 11) set_element(w, r, 0);
  }
  for (const bool moves : {false, true}) {
    for (const bool probabilities : {false, true}) {
      Twin index = Twin::counts({kRows}), ids = Twin::counts({kRows}), weight(token_weight.cpu),
           divisors = Twin::result({3}, DType::f64);
      on_both([&](Backend& device, const auto& take) {
        device.cross_entropy_targets({.target = probabilities ? Tensor() : take(target),
                                      .range = {.n = kClasses, .ignored = -100},
                                      .class_weight = probabilities ? Tensor() : take(class_weight),
                                      .divisor = {.mean = true},
                                      .index = probabilities ? Tensor() : take(index),
                                      .weight = take(weight),
                                      .ids = moves ? take(ids) : Tensor(),
                                      .divisors = take(divisors)},
                                     [](int64_t, int64_t) { FAIL() << "all are in range"; });
      });
      const std::string what = fmt::format("{} {}", moves, probabilities);
      expect_agreement(index, 0, 0, what);
      expect_agreement(ids, 0, 0, what);
      expect_agreement(weight, 0, 0, what);
      expect_agreement(divisors, 1e-12, 1e-12, what);
    }
  }
}

}  // namespace
}  // namespace tapehead
