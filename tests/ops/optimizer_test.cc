// What an optimiser's ops refuse: kernels trust what they get. The steps themselves are tests/backends' task.
#include "tapehead/ops/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

using List = std::vector<Tensor>;

List vector(DType dtype) { return {Tensor::zeros({2}, dtype)}; }

const AdamW kAdamW{.learning_rate = 0, .beta1 = 0, .beta2 = 0, .epsilon = 1, .weight_decay = 0, .step = 1};

TEST(OptimizerOps, RefuseNumbersAsTorchs) {
  const List g = vector(DType::f32);
  List p = vector(DType::f32), m = vector(DType::f32), v = vector(DType::f32), none;
  const auto expect_refused = [&](auto change, const std::string& text) {
    AdamW numbers = kAdamW;
    change(numbers);
    expect_error<ValueError>([&] { adamw_step(numbers, p, g, m, v); }, text);
  };
  EXPECT_NO_THROW(adamw_step(kAdamW, p, g, m, v));
  expect_refused([](AdamW& n) { n.learning_rate = -1; },
                 "[adamw_step] learning_rate is -1: it must be at least 0");
  expect_refused([](AdamW& n) { n.weight_decay = -1; }, "weight_decay is -1");
  expect_refused([](AdamW& n) { n.weight_decay = std::nan(""); }, "weight_decay is nan");
  expect_refused([](AdamW& n) { n.epsilon = -1; }, "epsilon is -1");
  expect_refused([](AdamW& n) { n.beta1 = 1; }, "beta1 is 1: it must be in [0, 1)");
  expect_refused([](AdamW& n) { n.beta2 = -1; }, "beta2 is -1");
  const auto expect_sgd_refused = [&](const Sgd& numbers, const std::string& text) {
    expect_error<ValueError>([&] { sgd_step(numbers, p, g, numbers.momentum == 0 ? none : m); }, text);
  };
  expect_sgd_refused({.learning_rate = -1, .momentum = 0, .weight_decay = 0},
                     "[sgd_step] learning_rate is -1");
  expect_sgd_refused({.learning_rate = 1, .momentum = -1, .weight_decay = 0}, "momentum is -1");
  expect_sgd_refused({.learning_rate = 1, .momentum = 0, .weight_decay = -1}, "weight_decay is -1");
  expect_sgd_refused({.learning_rate = 1, .momentum = 0, .weight_decay = 0, .nesterov = true},
                     "nesterov needs a momentum above 0");
}

TEST(OptimizerOps, ParametersOf16BitsHaveMasterWeightsAndTheseAlone) {
  const auto adamw = [](DType of_p, DType of_moments, List master) {
    List p = vector(of_p), m = vector(of_moments), v = vector(of_moments);
    adamw_step(kAdamW, p, vector(of_p), m, v, master);
  };
  const auto sgd = [](DType of_p, List master) {
    List p = vector(of_p);
    sgd_step({.learning_rate = 1, .momentum = 0, .weight_decay = 0}, p, vector(of_p), {}, master);
  };
  EXPECT_NO_THROW(adamw(DType::bf16, DType::f32, vector(DType::f32)));
  EXPECT_NO_THROW(sgd(DType::bf16, vector(DType::f32)));
  expect_error<TypeError>([&] { adamw(DType::bf16, DType::bf16, vector(DType::f32)); },
                          "first moments is bf16, but must be f32");
  expect_error<TypeError>([&] { adamw(DType::bf16, DType::f32, vector(DType::bf16)); },
                          "master weights is bf16, but must be f32");
  expect_error<ValueError>([&] { adamw(DType::f16, DType::f32, {}); },
                           "[adamw_step] 0 master weights for 1 parameters");
  expect_error<ValueError>([&] { sgd(DType::bf16, {}); }, "[sgd_step] 0 master weights for 1 parameters");
  expect_error<ValueError>([&] { adamw(DType::f32, DType::f32, vector(DType::f32)); },
                           "[adamw_step] 1 master weights for parameters of f32, which take none");
  expect_error<ValueError>([&] { sgd(DType::f64, vector(DType::f64)); }, "which take none");
}

TEST(OptimizerOps, WithoutParametersThereIsNothingToDo) {
  EXPECT_NO_THROW(adamw_step(kAdamW, {}, {}, {}, {}));
  EXPECT_NO_THROW(sgd_step({.learning_rate = 1, .momentum = 0, .weight_decay = 0}, {}, {}, {}));
}

}  // namespace
}  // namespace tapehead
