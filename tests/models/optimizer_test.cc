#include "tapehead/models/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tapehead/core/view.h"
#include "tapehead/models/schedule.h"
#include "tapehead/ops/linear_cross_entropy.h"
#include "tapehead/tests/models/gpt2_golden.h"

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
  const CosineSchedule schedule{.peak = 1e-3, .minimum = 1e-4, .warmup = 3, .steps = 10};
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
    EXPECT_NEAR(optimizer.step(schedule.at(step), 1), norms[i], 1e-5 * norms[i]) << step;
    EXPECT_EQ(optimizer.steps(), step);
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

  Tensor matrix_ = Tensor::full({2, 2}, 1, DType::f64);
  Tensor vector_ = Tensor::full({5}, 1, DType::f64);
  AdamWOptimizer optimizer_{{{"matrix", matrix_}, {"vector", vector_}}, {.weight_decay = 0.5}};
};

TEST_F(OnesTest, OnlyMatricesDecay) {
  EXPECT_DOUBLE_EQ(optimizer_.step(0.1), 3);
  EXPECT_NEAR(first(matrix_), 1 - 0.1 * 0.5 - 0.1, 1e-8);
  EXPECT_NEAR(first(vector_), 1 - 0.1, 1e-8);
}

TEST_F(OnesTest, ClippingScalesTheGradientThatMomentsSeeButNotTheNorm) {
  EXPECT_DOUBLE_EQ(optimizer_.step(0.1, 1.5), 3);
  const double scale = 1.5 / (3 + 1e-6);
  EXPECT_NEAR(first(optimizer_.first_moments()[1].second), 0.1 * scale, 1e-15);
  EXPECT_NEAR(first(optimizer_.second_moments()[1].second), 0.05 * scale * scale, 1e-15);
}

TEST_F(OnesTest, AParameterWithoutAGradientStays) {
  vector_.set_grad({});
  EXPECT_DOUBLE_EQ(optimizer_.step(0.1), 2);
  EXPECT_EQ(first(vector_), 1);
  EXPECT_NE(first(matrix_), 1);
}

TEST_F(OnesTest, AGradientThatIsNoNumberChangesNothing) {
  vector_.grad().fill(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT([&] { optimizer_.step(0.1); },
              ThrowsMessage<RuntimeError>(AllOf(HasSubstr("nan"), HasSubstr("step 1"))));
  EXPECT_EQ(optimizer_.steps(), 0);
  EXPECT_EQ(first(matrix_), 1);
  EXPECT_EQ(first(optimizer_.first_moments()[0].second), 0);
}

TEST_F(OnesTest, MomentsAreNamedAfterTheirParametersAndShared) {
  const ParameterList moments = optimizer_.first_moments();
  EXPECT_EQ(moments[0].first, "matrix");
  optimizer_.step(0.1);
  EXPECT_NEAR(first(moments[0].second), 0.1, 1e-15);
}

}  // namespace
}  // namespace tapehead
