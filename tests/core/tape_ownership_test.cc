// Who holds a gradient, who may write it, and what hooks see of it.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "tapehead/core/view.h"
#include "tapehead/tests/core/small_ops.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// ---- Who holds a gradient (invariant 5)

TEST(GradientOwnership, LeavesThatShareAGradientDoNotShareItsMemory) {
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  backward(add({a, b}), vector({1, 1}));
  EXPECT_NE(a.grad().raw_data(), b.grad().raw_data());
  backward(square(a), vector({1, 1}));
  EXPECT_THAT(grad(a), ElementsAre(3, 5));
  EXPECT_THAT(grad(b), ElementsAre(1, 1));
}

TEST(GradientOwnership, SharedIntermediateSumsStayApart) {
  Tensor a = leaf({1}), b = leaf({3});
  const Tensor s = add({a, b});
  // p and q adopt one gradient; p's sum then grows.
  const Tensor p = reshape(s, {1}), q = reshape(s, {1});
  backward(add({p, q, reshape(p, {1}), square(a)}));
  EXPECT_THAT(grad(a), ElementsAre(3 + 2));
  EXPECT_THAT(grad(b), ElementsAre(3));
}

TEST(GradientOwnership, TheCallersGradientIsNeverWritten) {
  Tensor x = leaf({1, 2});
  const Tensor mine = vector({1, 1});
  for (int i = 0; i < 3; ++i) backward(reshape(x, {2}), mine);
  EXPECT_THAT(mine.to_vector<double>(), ElementsAre(1, 1));
  EXPECT_THAT(grad(x), ElementsAre(3, 3));
}

TEST(GradientOwnership, AGradientOverForeignMemoryIsCopied) {
  Tensor x = leaf({1, 2});
  const auto mine = std::make_shared<std::vector<double>>(2, 1.0);
  const auto over_mine = [&] {
    return Tensor::over(std::make_shared<Storage>(mine, mine->data(), 16), {2}, DType::f64);
  };
  for (int i = 0; i < 3; ++i) backward(reshape(x, {2}), over_mine());
  EXPECT_THAT(*mine, ElementsAre(1, 1));
  EXPECT_THAT(grad(x), ElementsAre(3, 3));
}

TEST(GradientOwnership, AGradientThatWasTakenKeepsItsValue) {
  Tensor x = leaf({2});
  backward(square(x));
  const Tensor first = x.grad();
  backward(square(x));
  EXPECT_THAT(first.to_vector<double>(), ElementsAre(4));
  EXPECT_THAT(grad(x), ElementsAre(8));
}

TEST(GradientOwnership, ASavedTensorThatIsHandedOutAsGradientIsNotWritten) {
  Tensor x = leaf({2});
  const Tensor saved = vector({7});
  const Tensor y =
      record("op", x.clone(), {x}, {saved}, [](const Upstream& up) -> Gradients { return {up.saved(0)}; });
  backward(y, {}, true);
  backward(y, {}, true);
  EXPECT_THAT(grad(x), ElementsAre(14));
  EXPECT_THAT(saved.to_vector<double>(), ElementsAre(7));
}

TEST(GradientOwnership, AnExclusiveGradientIsHandedOnWithoutACopy) {
  Tensor x = leaf({1, 2});
  Tensor gradient = vector({3, 4});
  const void* memory = gradient.raw_data();
  backward(reshape(reshape(x, {2, 1}), {1, 2}), reshape(std::move(gradient), {1, 2}));
  EXPECT_NE(x.grad().raw_data(), memory) << "the caller held it";
  x.set_grad({});

  Tensor other = Tensor::full({1, 2}, 3, DType::f64);
  memory = other.raw_data();
  backward(reshape(reshape(x, {2, 1}), {1, 2}), std::move(other));
  EXPECT_EQ(x.grad().raw_data(), memory);
  const Tensor y = square(x);
  memory = x.grad().raw_data();
  backward(y, vector({1, 1}));
  EXPECT_EQ(x.grad().raw_data(), memory) << "added to in place";
}

TEST(GradientOwnership, AStridedGradientBecomesADenseOne) {
  Tensor x = leaf({1, 2, 3});
  backward(reshape(x, {3}), expand(Tensor::full({1}, 2, DType::f64), {3}));
  EXPECT_TRUE(x.grad().is_contiguous());
  EXPECT_THAT(grad(x), ElementsAre(2, 2, 2));
}

TEST(GradientOwnership, WhatWasSavedIsFreedByBackward) {
  Tensor x = leaf({1, 2});
  std::weak_ptr<Storage> middle;
  const Tensor y = [&] {
    const Tensor m = square(x);
    middle = m.storage();
    return square(m);
  }();
  EXPECT_FALSE(middle.expired());
  backward(y, vector({1, 1}));
  EXPECT_TRUE(middle.expired()) << "though y is still there";
}

// ---- Hooks

TEST(Hooks, OfLeavesAndResultsSeeTheWholeSumAndMayReplaceIt) {
  Tensor x = leaf({2});
  std::vector<double> seen;
  x.register_hook([&](const Tensor& g) { return seen.push_back(g.item()), Tensor(); });
  Tensor middle = square(x);
  middle.register_hook([&](const Tensor& g) {
    seen.push_back(g.item());
    return vector({10});
  });
  middle.register_hook([&](const Tensor& g) { return seen.push_back(g.item()), Tensor(); });
  backward(add({middle, middle}));
  EXPECT_THAT(seen, ElementsAre(2, 10, 40));
  EXPECT_THAT(grad(x), ElementsAre(40));
}

TEST(Hooks, OfALeafSeeEachBackwardsGradientAlone) {
  Tensor x = leaf({2});
  std::vector<double> seen;
  x.register_hook([&](const Tensor& g) { return seen.push_back(g.item()), Tensor(); });
  backward(square(x));
  backward(square(x));
  EXPECT_THAT(seen, ElementsAre(4, 4));
  EXPECT_THAT(grad(x), ElementsAre(8));
}

TEST(Hooks, AReplacementHasTheRightShapeAndDType) {
  for (const Tensor& wrong : {vector({1, 2}).to(DType::f32), Tensor::zeros({3}, DType::f64)}) {
    Tensor x = leaf({2, 2});
    x.register_hook([&](const Tensor&) { return wrong; });
    EXPECT_THAT(
        [&] {
          backward(square(x), vector({1, 1}));
        },
        ThrowsMessage<RuntimeError>(HasSubstr("[register_hook]")));
  }
}

TEST(Hooks, WhatAHookKeepsIsNotWrittenLater) {
  Tensor x = leaf({2});
  Tensor kept;
  x.register_hook([&](const Tensor& g) {
    if (!kept.defined()) kept = g;
    return Tensor();
  });
  for (int i = 0; i < 3; ++i) backward(square(x));
  EXPECT_EQ(kept.item(), 4);
}

// The list of hooks grows while it is walked.
TEST(Hooks, AHookMayRegisterAnother) {
  Tensor x = leaf({2});
  int calls = 0;
  Tensor y = square(x);
  y.register_hook([&, slot = std::weak_ptr(y.slot())](const Tensor&) {
    for (int i = 0; i < 100; ++i) {
      slot.lock()->hooks.push_back([&](const Tensor&) { return ++calls, Tensor(); });
    }
    return Tensor();
  });
  int second = 0;
  y.register_hook([&](const Tensor&) { return ++second, Tensor(); });
  backward(y, {}, true);
  EXPECT_EQ(second, 1);
  EXPECT_EQ(calls, 0);
  backward(y);
  EXPECT_EQ(calls, 100);
}

}  // namespace
}  // namespace tapehead
