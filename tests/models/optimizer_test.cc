#include "tapehead/models/optimizer.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tapehead/core/memory.h"
#include "tapehead/core/view.h"
#include "tapehead/models/freeze.h"
#include "tapehead/models/muon.h"
#include "tapehead/models/schedule.h"
#include "tapehead/ops/linear_cross_entropy.h"
#include "tapehead/tests/models/gpt2_golden.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Ten steps with warm-up, cosine, clipping (of some steps and not of others), and decay of matrices alone.
TEST(OptimizerTest, TenStepsAreTorchs) {
  const SafetensorsFile golden = gpt2_golden();
  const GPT model = gpt2_model(golden);
  AdamWOptimizer optimizer(model.parameters(),
                           {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1});
  const Schedule schedule{.peak = 1e-3, .minimum = 1e-4, .warmup = 3, .steps = 10};
  const Tensor ids = golden.tensor("train/input_ids"), targets = golden.tensor("train/targets");
  const auto losses = golden.tensor("train/loss").to_vector<double>();
  const auto norms = golden.tensor("train/grad_norm").to_vector<double>();
  LinearCrossEntropyArgs args;
  args.options = LinearCrossEntropyOptions({.batch_chunk_size = 16});
  for (int64_t step = 1; step <= 10; ++step) {
    const auto i = static_cast<size_t>(step - 1);
    const Tensor loss = model.loss(select(ids, 0, step - 1), select(targets, 0, step - 1), args);
    backward(loss);
    EXPECT_NEAR(loss.item(), losses[i], 1e-5 * losses[i]) << step;
    const double norm = gradient_norm(model.parameters());
    EXPECT_NEAR(norm, norms[i], 1e-5 * norms[i]) << step;
    optimizer.step(schedule.at(step), clip_scale(norm, 1));
    EXPECT_EQ(optimizer.steps(), step);
    optimizer.zero_grad();
    for (const auto& [name, parameter] : model.parameters()) EXPECT_FALSE(parameter.grad().defined()) << name;
  }
  for (const auto& [name, parameter] : model.parameters()) {
    const Tensor expected = golden.tensor("final/" + name);
    if (name.ends_with("attn.c_attn.bias")) {
      // The keys' bias, the middle third, adds the same to all scores of a query: softmax does not see it.
      // Its gradient is zero but for rounding, and AdamW makes full-sized steps of that.
      EXPECT_LT(relative_error(parameter, expected, 0, 32), 1e-5) << name;
      EXPECT_LT(relative_error(parameter, expected, 64, 96), 1e-5) << name;
    } else {
      EXPECT_LT(relative_error(parameter, expected), 1e-5) << name;
    }
  }
}

Tensor find(const Optimizer& optimizer, const std::string& wanted) {
  for (const auto& [name, tensor] : optimizer.state()) {
    if (name == wanted) return tensor;
  }
  ADD_FAILURE() << "there is no state " << wanted;
  return {};
}

// One matrix and one vector of ones, with gradients of ones: AdamW's first step moves by the learning rate.
class OnesTest : public testing::Test {
 protected:
  OnesTest() {
    for (Tensor* p : {&matrix_, &vector_}) {
      p->set_requires_grad();
      p->set_grad(Tensor::full(p->shape(), 1, DType::f64));
    }
  }
  static double first(const Tensor& x) { return x.to_vector<double>()[0]; }
  Tensor state(const std::string& wanted) const { return find(optimizer_, wanted); }

  Tensor matrix_ = Tensor::full({2, 2}, 1, DType::f64);
  Tensor vector_ = Tensor::full({5}, 1, DType::f64);
  AdamWOptimizer optimizer_{{{"matrix", matrix_}, {"vector", vector_}}, {.weight_decay = 0.5}};
};

TEST_F(OnesTest, OnlyMatricesDecay) {
  EXPECT_DOUBLE_EQ(gradient_norm(optimizer_.parameters()), 3);
  optimizer_.step(0.1);
  EXPECT_NEAR(first(matrix_), 1 - 0.1 * 0.5 - 0.1, 1e-8);
  EXPECT_NEAR(first(vector_), 1 - 0.1, 1e-8);
}

TEST_F(OnesTest, ClippingScalesTheGradientThatMomentsSeeButNotTheGradient) {
  const double scale = 1.5 / (3 + 1e-6);
  EXPECT_DOUBLE_EQ(clip_scale(3, 1.5), scale);
  EXPECT_EQ(clip_scale(1, 1.5), 1);
  EXPECT_EQ(clip_scale(3, 0), 1);
  optimizer_.step(0.1, scale);
  EXPECT_NEAR(first(state("first.vector")), 0.1 * scale, 1e-15);
  EXPECT_NEAR(first(state("second.vector")), 0.05 * scale * scale, 1e-15);
  EXPECT_EQ(first(vector_.grad()), 1);
}

TEST_F(OnesTest, AParameterWithoutAGradientStays) {
  vector_.set_grad({});
  EXPECT_DOUBLE_EQ(gradient_norm(optimizer_.parameters()), 2);
  optimizer_.step(0.1);
  EXPECT_EQ(first(vector_), 1);
  EXPECT_NE(first(matrix_), 1);
}

TEST_F(OnesTest, FrozenParametersHaveNoState) {
  matrix_.set_requires_grad(false);
  const auto optimizer = make_optimizer(optimizer_.parameters(), {});
  for (const auto& [name, tensor] : optimizer->state()) EXPECT_EQ(name.find("matrix"), name.npos) << name;
  EXPECT_DOUBLE_EQ(gradient_norm(optimizer_.parameters()), std::sqrt(5));
}

TEST_F(OnesTest, StateIsNamedAfterItsParameterAndShared) {
  const ParameterList state = optimizer_.state();
  ASSERT_EQ(state.size(), 4u);
  EXPECT_EQ(state[0].first, "first.matrix");
  EXPECT_EQ(state[3].first, "second.vector");
  optimizer_.step(0.1);
  EXPECT_NEAR(first(state[0].second), 0.1, 1e-15);
}

TEST_F(OnesTest, RefusesANegativeLearningRateBeforeAnythingChanges) {
  EXPECT_THAT([&] { optimizer_.step(-0.1); },
              ThrowsMessage<ValueError>(HasSubstr("learning rate -0.1: it must be at least 0")));
  EXPECT_THROW(optimizer_.step(std::nan("")), ValueError);
  StepOnDevice on_device({3}, DType::f64);
  EXPECT_THROW(optimizer_.count_step(-0.1, 1, on_device), ValueError);
  EXPECT_EQ(optimizer_.steps(), 0);
  EXPECT_EQ(first(matrix_), 1);
}

// Hazard: options that never passed make_optimizer.
TEST(OptimizerOptionsTest, AreCheckedByEveryConstructor) {
  const ParameterList list = {{"p", Tensor::zeros({2})}};
  const auto expect_refused = [&](const OptimizerOptions& options, const std::string& text) {
    const auto throws = ThrowsMessage<ValueError>(HasSubstr(text));
    EXPECT_THAT([&] { AdamWOptimizer(list, options); }, throws);
    EXPECT_THAT([&] { SgdOptimizer(list, options); }, throws);
    EXPECT_THAT([&] { MuonOptimizer(list, options); }, throws);
    EXPECT_THAT([&] { make_optimizer(list, options); }, throws);
  };
  expect_refused({.beta1 = 1}, "beta1 is 1: it must be in [0, 1)");
  expect_refused({.beta2 = -0.1}, "beta2 is -0.1: it must be in [0, 1)");
  expect_refused({.beta2 = std::nan("")}, "beta2 is nan");
  expect_refused({.epsilon = -1e-8}, "epsilon is -1e-08: it must be positive");
  expect_refused({.momentum = -0.9}, "momentum is -0.9: it must be in [0, 1)");
  expect_refused({.weight_decay = -1}, "weight_decay is -1: it must be at least 0");
  expect_refused({.name = "adam"}, "name is adam");
}

// ---- SGD and Muon, beside PyTorch's

class GoldenOptimizerTest : public testing::TestWithParam<const char*> {
 protected:
  ParameterList parameters(DType dtype) const {
    ParameterList list;
    for (const char* name : {"h.0.wide.weight", "h.1.tall.weight", "h.1.tall.bias", "embedding.weight"}) {
      Tensor value = golden_.tensor(std::string("initial/") + name).to(dtype).clone().to(default_device());
      list.emplace_back(name, value.set_requires_grad());
    }
    return list;
  }

  /// The case's steps; `list` holds its parameters then.
  std::unique_ptr<Optimizer> run(const ParameterList& list) const {
    const auto settings = nlohmann::json::parse(golden_.metadata().at(GetParam()));
    auto optimizer = make_optimizer(list, {.name = settings.at("name"),
                                           .momentum = settings.at("momentum"),
                                           .nesterov = settings.at("nesterov"),
                                           .weight_decay = settings.at("weight_decay")});
    for (int64_t step = 0; step < 4; ++step) {
      for (const auto& [name, p] : list)
        Tensor(p).set_grad(
            select(golden_.tensor("gradient/" + name), 0, step).to(p.dtype()).clone().to(p.device()));
      optimizer->step(settings.at("lr"));
    }
    return optimizer;
  }

  const SafetensorsFile golden_ = SafetensorsFile::open("tests/golden/optimizer.safetensors");
};

INSTANTIATE_TEST_SUITE_P(Cases, GoldenOptimizerTest,
                         testing::Values("sgd", "sgd_nesterov", "sgd_plain", "muon", "muon_nesterov"),
                         [](const auto& golden) { return std::string(golden.param); });

TEST_P(GoldenOptimizerTest, FourStepsAreTorchs) {
  for (const auto& [dtype, bound] : {std::pair(DType::f64, 1e-12), std::pair(DType::f32, 2e-6)}) {
    const ParameterList list = parameters(dtype);
    run(list);
    for (const auto& [name, p] : list)
      EXPECT_LT(relative_error(p, golden_.tensor(std::string(GetParam()) + "/" + name)), bound) << name;
  }
}

// The master weights go the way of the gradients that bf16 can hold, and the parameters are their rounding.
TEST_P(GoldenOptimizerTest, Bf16ParametersAreTheirMastersRounded) {
  const ParameterList list = parameters(DType::bf16);
  const auto optimizer = run(list);
  for (const auto& [name, p] : list) {
    const Tensor master = find(*optimizer, "master." + name);
    EXPECT_EQ(master.dtype(), DType::f32) << name;
    EXPECT_LT(relative_error(master, golden_.tensor(std::string(GetParam()) + "/" + name)), 2e-2) << name;
    EXPECT_EQ(master.to(DType::bf16).to_vector<float>(), p.to_vector<float>()) << name;
  }
}

TEST_P(GoldenOptimizerTest, AllocatesWhatIsPlanned) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const ParameterList list = parameters(dtype);
    Tensor(list[1].second).set_requires_grad(false);
    const nlohmann::json settings = nlohmann::json::parse(golden_.metadata().at(GetParam()));
    const OptimizerOptions options = {.name = settings.at("name"), .momentum = settings.at("momentum")};
    const int64_t before = memory_stats(default_device()).live_bytes;
    const auto optimizer = make_optimizer(list, options);
    EXPECT_EQ(memory_stats(default_device()).live_bytes - before, optimizer_bytes(list, options))
        << name(dtype);
  }
}

TEST(MuonTest, ChoosesTheMatricesOfNumberedLayers) {
  const auto chosen = [](const char* name, const Shape& shape) {
    return MuonOptimizer::is_layer_matrix({name, Tensor::zeros(shape)});
  };
  EXPECT_TRUE(chosen("transformer.h.11.attn.c_attn.weight", {2, 3}));
  EXPECT_TRUE(chosen("model.layers.0.mlp.up_proj.weight", {2, 3}));
  EXPECT_FALSE(chosen("transformer.h.11.attn.c_attn.bias", {2}));
  EXPECT_FALSE(chosen("transformer.wte.weight", {2, 3}));
  EXPECT_FALSE(chosen("lm_head.weight", {2, 3}));
}

TEST(FreezeTest, FollowsPatternsAndRefusesThoseThatDoNothingOrAll) {
  ParameterList list;
  for (const char* name : {"h.0.weight", "h.0.bias", "h.1.weight", "head.weight"})
    list.emplace_back(name, Tensor::zeros({2}).set_requires_grad());
  freeze(list, "h.0.*,*.bias");
  EXPECT_FALSE(list[0].second.requires_grad());
  EXPECT_FALSE(list[1].second.requires_grad());
  EXPECT_TRUE(list[2].second.requires_grad());
  EXPECT_TRUE(list[3].second.requires_grad());
  EXPECT_THAT(
      [&] { freeze(list, "h.0.*,layers.*"); },
      ThrowsMessage<ValueError>(AllOf(HasSubstr("layers.* matches none of the 4"), HasSubstr("h.0.weight"))));
  EXPECT_THAT([&] { freeze(list, "*"); }, ThrowsMessage<ValueError>(HasSubstr("leaves no parameter")));
}

// ---- Parameters of 16 bits

// Near 1 the bf16 numbers are 2^-8 apart or more, and a step of 1e-4 alone would be rounded away every time.
TEST(HalfOptimizerTest, StepsTooSmallForBf16AddUp) {
  Tensor p = Tensor::full({3}, 1, DType::bf16).set_requires_grad();
  AdamWOptimizer optimizer({{"p", p}});
  for (int step = 1; step <= 100; ++step) {
    p.set_grad(Tensor::full({3}, 1, DType::bf16));
    optimizer.step(1e-4);
    if (step == 5) {
      EXPECT_EQ(p.to_vector<double>()[0], 1);
    }
  }
  const Tensor master = optimizer.masters().at(0).second;
  // 100 roundings of f32 apart.
  EXPECT_NEAR(master.to_vector<double>()[0], 1 - 100 * 1e-4, 1e-5);
  // The bf16 number nearest to 0.99.
  EXPECT_EQ(p.to_vector<double>()[0], 0.98828125);
}

TEST(HalfOptimizerTest, MomentsAndMasterWeightsAreF32AndOfThe16BitParametersAlone) {
  Tensor half = Tensor::full({2, 2}, 0.5, DType::bf16), single = Tensor::full({2}, 1);
  AdamWOptimizer optimizer({{"half", half}, {"single", single}}, {.weight_decay = 0.5});
  EXPECT_EQ(find(optimizer, "first.half").dtype(), DType::f32);
  EXPECT_EQ(find(optimizer, "second.half").dtype(), DType::f32);
  const ParameterList masters = optimizer.masters();
  ASSERT_EQ(masters.size(), 1u);
  EXPECT_EQ(masters[0].first, "half");
  EXPECT_EQ(masters[0].second.dtype(), DType::f32);
  EXPECT_EQ(masters[0].second.to_vector<float>(), std::vector<float>(4, 0.5));
  // One step of both together: the norm is of all gradients, and matrices alone decay.
  half.set_requires_grad().set_grad(Tensor::full({2, 2}, 1, DType::bf16));
  single.set_requires_grad().set_grad(Tensor::full({2}, 1));
  EXPECT_DOUBLE_EQ(gradient_norm(optimizer.parameters()), std::sqrt(6));
  optimizer.step(0.1);
  EXPECT_NEAR(masters[0].second.to_vector<double>()[0], 0.5 * (1 - 0.1 * 0.5) - 0.1, 1e-6);
  EXPECT_NEAR(single.to_vector<double>()[0], 1 - 0.1, 1e-6);
}

TEST(HalfOptimizerTest, F32ParametersCostTwoMomentsAndStepsNothing) {
  Tensor p = Tensor::full({100, 3}, 1).set_requires_grad();
  const MemoryStats before = memory_stats(default_device());
  AdamWOptimizer optimizer({{"p", p}});
  MemoryStats after = memory_stats(default_device());
  EXPECT_EQ(after.live_bytes - before.live_bytes, 2 * 100 * 3 * 4);
  EXPECT_EQ(after.allocations - before.allocations, 2);
  EXPECT_TRUE(optimizer.masters().empty());
  p.set_grad(Tensor::full({100, 3}, 1));
  after = memory_stats(default_device());
  optimizer.step(0.1);
  EXPECT_EQ(memory_stats(default_device()).allocations, after.allocations);
}

TEST(HalfOptimizerTest, A16BitStepAllocatesNothingEither) {
  Tensor p = Tensor::full({100, 30}, 1, DType::bf16).set_requires_grad();
  const MemoryStats before = memory_stats(default_device());
  AdamWOptimizer optimizer({{"p", p}});
  EXPECT_EQ(memory_stats(default_device()).live_bytes - before.live_bytes, 3 * 100 * 30 * 4);
  p.set_grad(Tensor::full({100, 30}, 1, DType::bf16));
  const MemoryStats after = memory_stats(default_device());
  optimizer.step(0.1);
  EXPECT_EQ(memory_stats(default_device()).allocations, after.allocations);
}

TEST(OptimizerTest, RefusesParametersThatAreNotFloating) {
  EXPECT_THAT(
      [] {
        AdamWOptimizer({{"ids", Tensor::zeros({2}, DType::i64)}});
      },
      ThrowsMessage<TypeError>(AllOf(HasSubstr("ids"), HasSubstr("i64"))));
}

}  // namespace
}  // namespace tapehead
