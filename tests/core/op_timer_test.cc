#include "tapehead/core/op_timer.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "tapehead/core/tape.h"
#include "tapehead/core/view.h"

namespace tapehead {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Tensor leaf() { return Tensor::full({3}, 1, DType::f64).set_requires_grad(); }
Tensor ones() { return Tensor::full({3}, 1, DType::f64); }

Tensor copy(
    const char* name, const Tensor& x,
    BackwardFunction backward = [](const Upstream& up) { return Gradients{up.grad}; }) {
  return record(name, x.clone(), {x}, {}, std::move(backward));
}

struct Count {
  std::string name;
  int64_t calls, backward_calls;
  bool operator==(const Count&) const = default;
};

void PrintTo(const Count& c, std::ostream* out) {
  *out << c.name << ' ' << c.calls << ' ' << c.backward_calls;
}

std::vector<Count> counts(const OpTimer& timer) {
  std::vector<Count> list;
  for (const OpTime& op : timer.times()) list.push_back({op.name, op.calls, op.backward_calls});
  return list;
}

TEST(OpTimer, CountsForwardAndBackwardByName) {
  const Tensor x = leaf();
  const OpTimer timer;
  backward(copy("b", copy("a", copy("a", x))), ones());
  EXPECT_THAT(counts(timer),
              ElementsAre(Count{"a", 2, 2}, Count{"b", 1, 1}, Count{"accumulate_gradient", 0, 1}));
}

TEST(OpTimer, CountsOperationsThatAreNotRecorded) {
  const Tensor x = leaf();
  const OpTimer timer;
  copy("constant", ones());
  const NoGradGuard no_grad;
  copy("off", x);
  EXPECT_THAT(counts(timer), ElementsAre(Count{"constant", 1, 0}, Count{"off", 1, 0}));
}

TEST(OpTimer, ViewsAreNoEvents) {
  const Tensor x = Tensor::full({2, 3}, 1, DType::f64).set_requires_grad();
  const OpTimer timer;
  const Tensor y = copy("a", transpose(x, 0, 1));
  EXPECT_THAT(counts(timer), ElementsAre(Count{"a", 1, 0}));
  backward(y, Tensor::full({3, 2}, 1, DType::f64));
  EXPECT_THAT(counts(timer),
              ElementsAre(Count{"a", 1, 1}, Count{"permute", 0, 1}, Count{"accumulate_gradient", 0, 1}));
}

TEST(OpTimer, SumsAreNoMoreThanWhatPassed) {
  const Tensor x = leaf();
  const Stopwatch stopwatch;
  const OpTimer timer;
  for (int i = 0; i < 20; ++i) backward(copy("b", copy("a", x)), ones());
  OpTimer::charge("rest");
  double sum = 0;
  for (const OpTime& op : timer.times()) {
    EXPECT_GE(op.forward_seconds, 0) << op.name;
    EXPECT_GE(op.backward_seconds, 0) << op.name;
    sum += op.forward_seconds + op.backward_seconds;
  }
  EXPECT_LE(sum, stopwatch.seconds());
}

TEST(OpTimer, WhatABackwardCallsIsPartOfIt) {
  const Tensor x = leaf();
  const OpTimer timer;
  const Tensor y = copy("outer", x, [](const Upstream& up) -> Gradients {
    backward(leaf(), ones());
    return {copy("inner", up.grad)};
  });
  backward(y, ones());
  copy("after", x);
  EXPECT_THAT(counts(timer),
              ElementsAre(Count{"outer", 1, 1}, Count{"accumulate_gradient", 0, 1}, Count{"after", 1, 0}));
}

TEST(OpTimer, ObservesForwardAgainWhenBackwardThrew) {
  const Tensor x = leaf();
  const OpTimer timer;
  const Tensor y = copy("a", x, [](const Upstream&) -> Gradients { throw std::runtime_error("no"); });
  EXPECT_THROW(backward(y, ones()), std::runtime_error);
  copy("b", x);
  EXPECT_THAT(counts(timer), ElementsAre(Count{"a", 1, 0}, Count{"b", 1, 0}));
}

TEST(OpTimer, TheInnermostObservesAlone) {
  const OpTimer outer;
  copy("a", ones());
  {
    const OpTimer inner;
    copy("b", ones());
    OpTimer::charge("work");
    EXPECT_THAT(counts(inner), ElementsAre(Count{"b", 1, 0}, Count{"work", 1, 0}));
  }
  copy("c", ones());
  EXPECT_THAT(counts(outer), ElementsAre(Count{"a", 1, 0}, Count{"c", 1, 0}));
}

TEST(OpTimer, ObservesItsOwnThread) {
  const OpTimer timer;
  std::thread([] { copy("elsewhere", ones()); }).join();
  EXPECT_THAT(timer.times(), IsEmpty());
}

TEST(OpTimer, IsGoneWhenDestroyed) {
  { const OpTimer timer; }
  OpTimer::charge("nobody's");
  backward(copy("a", leaf()), ones());
  EXPECT_FALSE(OpTimer::observing());
}

}  // namespace
}  // namespace tapehead
