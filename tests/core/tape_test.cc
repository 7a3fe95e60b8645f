#include "tapehead/core/tape.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "tapehead/core/anomaly_guard.h"
#include "tapehead/core/view.h"
#include "tapehead/tests/core/small_ops.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// ---- Sums of gradients

TEST(Backward, ReachesEveryLeaf) {
  Tensor x = leaf({1, 2}), y = leaf({3, 4});
  backward(add({square(x), y}), vector({1, 10}));
  EXPECT_THAT(grad(x), ElementsAre(2, 40));
  EXPECT_THAT(grad(y), ElementsAre(1, 10));
}

TEST(Backward, AReusedTensorGetsTheSum) {
  Tensor x = leaf({3});
  backward(add({x, x, x}));
  EXPECT_THAT(grad(x), ElementsAre(3));
}

TEST(Backward, DiamondsAreSummedBeforeTheyGoOn) {
  Tensor x = leaf({2});
  Tensor middle = square(x);
  int calls = 0;
  middle.register_hook([&](const Tensor&) { return ++calls, Tensor(); });
  backward(add({square(middle), middle}));  // x⁴ + x²
  EXPECT_THAT(grad(x), ElementsAre(4 * 8 + 2 * 2));
  EXPECT_EQ(calls, 1);
}

TEST(Backward, OfALeafIsItsGradient) {
  Tensor x = leaf({2});
  backward(x);
  EXPECT_THAT(grad(x), ElementsAre(1));
}

TEST(Backward, SeveralBackwardsAccumulate) {
  Tensor x = leaf({2});
  for (int i = 1; i <= 3; ++i) {
    backward(square(x));
    EXPECT_THAT(grad(x), ElementsAre(4.0 * i));
  }
  x.set_grad({});
  backward(square(x));
  EXPECT_THAT(grad(x), ElementsAre(4));
}

TEST(Backward, OnlyWhatRequiresAGradientGetsOne) {
  Tensor x = leaf({2}), constant = vector({5});
  const Tensor y = add({square(x), constant, square(x.detach())});
  backward(y);
  EXPECT_THAT(grad(x), ElementsAre(4));
  EXPECT_FALSE(constant.grad().defined());
  EXPECT_FALSE(y.grad().defined()) << "results keep none";
}

TEST(Backward, AnUndefinedGradientAddsNothingAndGoesNoFurther) {
  Tensor x = leaf({2}), y = leaf({3});
  const auto nothing = [](const Upstream&) -> Gradients { return {Tensor()}; };
  backward(add({answer(square(x), nothing), y}));
  EXPECT_FALSE(x.grad().defined());
  EXPECT_THAT(grad(y), ElementsAre(1));
}

TEST(Backward, NeedsTellsWhichGradientsAreWanted) {
  Tensor x = leaf({2}), constant = vector({3});
  const Tensor y =
      record("op", vector({0}), {constant, x, Tensor()}, {}, [](const Upstream& up) -> Gradients {
        EXPECT_FALSE(up.needs(0));
        EXPECT_TRUE(up.needs(1));
        EXPECT_FALSE(up.needs(2));
        EXPECT_FALSE(grad_enabled()) << "invariant 7";
        return {Tensor(), up.grad, Tensor()};
      });
  backward(y);
  EXPECT_THAT(grad(x), ElementsAre(1));
}

// Of two results of one leaf, each has a tape of its own: freeing one leaves the other.
TEST(Backward, TapesThatShareOnlyLeavesAreIndependent) {
  Tensor x = leaf({2});
  const Tensor y = square(x), z = square(x);
  backward(y);
  backward(z);
  EXPECT_THAT(grad(x), ElementsAre(8));
}

// ---- What backward refuses

TEST(Backward, ASecondTimeIsAClearError) {
  Tensor x = leaf({2});
  const Tensor y = square(x);
  backward(y);
  EXPECT_THAT([&] { backward(y); },
              ThrowsMessage<RuntimeError>(
                  AllOf(HasSubstr("[square]"), HasSubstr("second time"), HasSubstr("retain_graph"))));
  EXPECT_THAT(grad(x), ElementsAre(4)) << "the failed one added nothing";
}

TEST(Backward, ASecondTimeThroughASharedPartIsAClearErrorToo) {
  Tensor x = leaf({2});
  const Tensor shared = square(x);
  const Tensor y = square(shared), z = square(shared);
  backward(y);
  EXPECT_THAT([&] { backward(z); }, ThrowsMessage<RuntimeError>(HasSubstr("[square]")));
}

TEST(Backward, RetainGraphAllowsAnother) {
  Tensor x = leaf({2});
  const Tensor y = square(x);
  backward(y, {}, true);
  backward(y, {}, true);
  backward(y);
  EXPECT_THAT(grad(x), ElementsAre(12));
  EXPECT_THROW(backward(y), RuntimeError);
}

TEST(Backward, ANodeThatWorksOnceSaysWhatToDoInstead) {
  Tensor x = leaf({2});
  const Tensor y = record(
      "once", x.clone(), {x}, {}, [](const Upstream& up) -> Gradients { return {up.grad}; },
      "call it with handing_on = false");
  backward(y, {}, true);
  EXPECT_THAT([&] { backward(y, {}, true); },
              ThrowsMessage<RuntimeError>(AllOf(HasSubstr("[once]"), HasSubstr("handing_on = false"))));
}

// A retained backward that gives it no gradient once used it up all the same.
TEST(Backward, ANodeThatWorksOnceIsKeptUntilAGradientReachesIt) {
  Tensor x = leaf({2});
  const Tensor y = record(
      "once", x.clone(), {x}, {}, [](const Upstream& up) -> Gradients { return {up.grad}; }, "advice");
  const Tensor gate =
      record("gate", y.clone(), {y}, {}, [](const Upstream&) -> Gradients { return {Tensor()}; });
  backward(gate, {}, true);
  EXPECT_FALSE(x.grad().defined());
  backward(y);
  EXPECT_THAT(grad(x), ElementsAre(1));
}

TEST(Backward, CountsMemoryInTheScopeOfForward) {
  Tensor x = leaf({2}), y;
  {
    const MemoryScope scope("forward");
    y = record("doubled", x.clone(), {x}, {}, [](const Upstream& up) -> Gradients {
      const Tensor scratch({1000}, DType::f64);
      return {up.grad};
    });
  }
  const int64_t before = memory_stats({}, "forward").live_bytes;
  backward(y);
  EXPECT_GE(memory_stats({}, "forward").peak_bytes, before + 8000);
}

TEST(Backward, ChecksTheOutputAndItsGradient) {
  Tensor x = leaf({1, 2});
  EXPECT_THAT([&] { backward(x.detach()); }, ThrowsMessage<RuntimeError>(HasSubstr("[backward]")));
  EXPECT_THAT([&] { backward(square(x)); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr("[backward]"), HasSubstr("(2,)"))));
  EXPECT_THAT([&] { backward(square(x), vector({1})); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr("(1,)"), HasSubstr("(2,)"))));
  EXPECT_THAT([&] { backward(square(x), Tensor::zeros({2})); },
              ThrowsMessage<TypeError>(AllOf(HasSubstr("f32"), HasSubstr("f64"))));
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(grad_enabled()) << "after errors, too";
}

TEST(Backward, AChangeInPlaceNamesOpInputAndBothVersions) {
  Tensor x = leaf({1, 2});
  const Tensor y = square(x);
  const int64_t saved = x.version();
  {
    const NoGradGuard no_grad;
    Tensor view = select(x, 0, 0);
    view.fill(5);
  }
  EXPECT_THAT(
      [&] {
        backward(y, vector({1, 1}));
      },
      ThrowsMessage<RuntimeError>(AllOf(HasSubstr("[square]"), HasSubstr("input 0"), HasSubstr("(2,)"),
                                        HasSubstr(fmt::format("version {}", saved)),
                                        HasSubstr(fmt::format("version {}", x.version())))));
}

TEST(Backward, AChangeOfASavedResultIsFoundToo) {
  Tensor x = leaf({1, 2});
  Tensor result = x.clone();
  const Tensor y = record("exp", result, {x}, {result},
                          [](const Upstream& up) -> Gradients { return {multiply(up.grad, up.saved(0))}; });
  const NoGradGuard no_grad;
  result.fill(0);
  EXPECT_THAT(
      [&] {
        backward(y, vector({1, 1}));
      },
      ThrowsMessage<RuntimeError>(AllOf(HasSubstr("[exp]"), HasSubstr("its result"))));
}

TEST(Backward, AChangeOfWhatWasNotSavedIsFine) {
  Tensor x = leaf({1});
  const Tensor y = add({x, x});
  const NoGradGuard no_grad;
  x.fill(7);
  backward(y);
  EXPECT_THAT(grad(x), ElementsAre(2));
}

TEST(Backward, GradientsOfTheWrongKindAreRefusedByName) {
  Tensor x = leaf({1, 2, 3});
  const auto refuses = [&](const Gradients& gradients, const std::string& a, const std::string& b) {
    const Tensor y = answer(x, [=](const Upstream&) { return gradients; });
    EXPECT_THAT(
        [&] {
          backward(y, vector({1, 1, 1}));
        },
        ThrowsMessage<RuntimeError>(AllOf(HasSubstr("[answer]"), HasSubstr(a), HasSubstr(b))));
  };
  refuses({vector({1, 1})}, "(2,)", "(3,)");
  refuses({Tensor::zeros({}, DType::f64)}, "()", "(3,)");
  refuses({Tensor::zeros({3, 1}, DType::f64)}, "(3, 1)", "(3,)");
  refuses({Tensor::zeros({3})}, "f32", "f64");
  refuses({}, "0 gradients", "1 inputs");
  refuses({vector({1, 1, 1}), vector({1, 1, 1})}, "2 gradients", "1 inputs");
}

TEST(Backward, AGradientOfTheBroadcastShapeIsSummed) {
  Tensor x = Tensor::zeros({3, 1}, DType::f64).set_requires_grad();
  const Tensor wide =
      Tensor::from<double>({2, 3, 2}, std::vector<double>{1, 2, 3, 4, 5, 6, 10, 20, 30, 40, 50, 60});
  const Tensor y = answer(x, [=](const Upstream&) -> Gradients { return {wide}; });
  backward(y, Tensor::zeros({3, 1}, DType::f64));
  EXPECT_EQ(x.grad().shape(), Shape({3, 1}));
  EXPECT_THAT(grad(x), ElementsAre(33, 77, 121));
}

// ---- Grad mode

TEST(GradMode, NothingIsRecordedUnderTheGuard) {
  Tensor x = leaf({2});
  {
    const NoGradGuard no_grad;
    EXPECT_FALSE(grad_enabled());
    EXPECT_FALSE(square(x).requires_grad());
    EXPECT_FALSE(will_record({x}));
    { const NoGradGuard inner; }
    EXPECT_FALSE(grad_enabled());
  }
  EXPECT_TRUE(grad_enabled());
  EXPECT_TRUE(square(x).requires_grad());
  EXPECT_TRUE(will_record({Tensor(), x}));
  EXPECT_FALSE(will_record({Tensor(), x.detach()}));
}

TEST(GradMode, IsOfOneThread) {
  const NoGradGuard no_grad;
  bool enabled_there = false;
  std::thread([&] {
    enabled_there = grad_enabled();
    const NoGradGuard guard;
  }).join();
  EXPECT_TRUE(enabled_there);
  EXPECT_FALSE(grad_enabled());
}

TEST(GradMode, ThreadsDifferentiateTheirOwnTapesOverSharedConstants) {
  const Tensor constant = vector({3});
  std::vector<std::thread> threads;
  std::vector<double> results(4);
  for (double& result : results) {
    threads.emplace_back([&result, constant] {
      Tensor x = leaf({2});
      for (int i = 0; i < 200; ++i) backward(add({square(x), constant}));
      result = x.grad().item();
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_THAT(results, ElementsAre(800, 800, 800, 800));
}

// ---- Anomaly mode

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(Anomaly, NamesTheFirstOpWhoseForwardIsNotFinite) {
  Tensor x = leaf({1, 1e200});
  const AnomalyGuard guard;
  EXPECT_NO_THROW(reshape(x, {1, 2}));
  EXPECT_THAT(
      [&] {
        reshape(square(x), {1, 2});
      },
      ThrowsMessage<RuntimeError>(AllOf(HasSubstr("[square]"), HasSubstr("forward"), HasSubstr("(2,)"))));
  const NoGradGuard no_grad;
  EXPECT_THROW(square(x), RuntimeError) << "recorded or not";
}

TEST(Anomaly, NamesTheFirstOpWhoseBackwardIsNotFinite) {
  Tensor x = leaf({1, 2});
  const auto poison = [](const Upstream&) -> Gradients { return {vector({1, kNaN})}; };
  const AnomalyGuard guard;
  EXPECT_THAT(
      [&] {
        backward(reshape(answer(square(x), poison), {2}), vector({1, 1}));
      },
      ThrowsMessage<RuntimeError>(AllOf(HasSubstr("[answer]"), HasSubstr("backward"), HasSubstr("input 0"))));
  EXPECT_FALSE(x.grad().defined());
}

TEST(Anomaly, IsOffOutsideTheGuard) {
  Tensor x = leaf({1e200});
  {
    const AnomalyGuard guard;
    const AnomalyGuard inner;
  }
  EXPECT_NO_THROW(backward(square(x)));
}

// ---- Depth and width (invariant 6). Recursion, a frame a node, would need a hundred times this stack.

void on_small_stack(std::function<void()> body) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 256 * 1024), 0);
  pthread_t thread;
  const auto run = [](void* f) -> void* {
    (*static_cast<std::function<void()>*>(f))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, &body), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

constexpr int kDeep = 1'000'000;

Tensor deep(const Tensor& x) {
  Tensor y = x;
  for (int i = 0; i < kDeep; ++i) y = reshape(y, {2});
  return y;
}

TEST(DeepGraph, IsBuiltDifferentiatedAndFreed) {
  on_small_stack([] {
    Tensor x = leaf({1, 2});
    backward(deep(x), vector({3, 4}));
    EXPECT_THAT(grad(x), ElementsAre(3, 4));
  });
}

TEST(DeepGraph, IsFreedWithoutBackward) {
  on_small_stack([] {
    Tensor x = leaf({1, 2});
    deep(x);
    EXPECT_EQ(x.slot().use_count(), 1) << "x's own";
  });
}

TEST(DeepGraph, IsFreedAfterAFailedOrRetainedBackward) {
  on_small_stack([] {
    Tensor x = leaf({1, 2});
    {
      const Tensor y = deep(x);
      backward(y, vector({1, 1}), true);
      x.register_hook([](const Tensor&) -> Tensor { throw ValueError("stop"); });
      EXPECT_THROW(backward(y, vector({1, 1})), ValueError);
    }
    EXPECT_EQ(x.slot().use_count(), 1);
  });
}

TEST(WideGraph, OneNodeOfManyInputs) {
  on_small_stack([] {
    constexpr int kWide = 100'000;
    Tensor x = leaf({1, 2});
    std::vector<Tensor> branches;
    for (int i = 0; i < kWide; ++i) branches.push_back(reshape(x, {2}));
    const Tensor y = add(branches);
    branches.clear();
    backward(y, vector({1, 2}));
    EXPECT_THAT(grad(x), ElementsAre(kWide, 2 * kWide));
  });
}

}  // namespace
}  // namespace tapehead
