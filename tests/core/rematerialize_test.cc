#include "tapehead/core/rematerialize.h"

#include <gtest/gtest.h>

#include "tapehead/tests/core/small_ops.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

Tensor times(const Tensor& a, const Tensor& b) {
  return record("times", multiply(a, b), {a, b}, {a, b}, [](const Upstream& up) -> Gradients {
    return {multiply(up.grad, up.saved(1)), multiply(up.grad, up.saved(0))};
  });
}

TEST(Rematerialize, GradientsAreThoseOfTheFunction) {
  const auto run = [](bool again) {
    const Tensor x = leaf({1, 2}), weight = leaf({3, -4});
    const auto function = [weight](const Tensor& in, Generator*) {
      return add({square(times(in, weight)), in});
    };
    const Tensor middle = square(x);
    const std::vector<Tensor> parameters = {weight};
    const Tensor y = again ? rematerialize(function, middle, parameters) : function(middle, nullptr);
    backward(square(y), vector({1, 0.5}));
    return std::tuple(y.to_vector<double>(), grad(x), grad(weight));
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(Rematerialize, RunsOncePerBackwardOnTheTapeAndOnceOff) {
  std::vector<bool> on_tape;
  const Tensor x = leaf({1, 2});
  const auto function = [&](const Tensor& in, Generator*) {
    on_tape.push_back(grad_enabled());
    return square(in);
  };
  const Tensor y = rematerialize(function, x, {});
  backward(y, vector({1, 1}), /*retain_graph=*/true);
  backward(y, vector({1, 1}));
  EXPECT_EQ(on_tape, (std::vector<bool>{false, true, true}));
  EXPECT_EQ(grad(x), (std::vector<double>{4, 8}));
  expect_error<RuntimeError>([&] { backward(y, vector({1, 1})); }, "[rematerialize] backward a second time");
}

// A frozen input: its parameters still learn.
TEST(Rematerialize, ParametersLearnWhereTheInputDoesNot) {
  const Tensor x = vector({1, 2}), weight = leaf({3, 4});
  const auto function = [weight](const Tensor& in, Generator*) { return times(in, weight); };
  backward(rematerialize(function, x, std::vector<Tensor>{weight}), vector({1, 10}));
  EXPECT_EQ(grad(weight), (std::vector<double>{1, 20}));
  EXPECT_FALSE(rematerialize(function, x, {}).requires_grad());
}

TEST(Rematerialize, DrawsTheSameNumbersAgain) {
  std::vector<uint64_t> drawn;
  Generator random{.seed = 1, .next = 7};
  const auto function = [&](const Tensor& in, Generator* numbers) {
    drawn.push_back(numbers->take(8));
    return square(in);
  };
  const Tensor x = leaf({1});
  const Tensor y = rematerialize(function, x, {}, &random);
  EXPECT_EQ(random.next, 9u);
  random.next = 100;
  backward(y);
  EXPECT_EQ(drawn, (std::vector<uint64_t>{7, 7}));
  EXPECT_EQ(random.next, 100u);
}

TEST(Rematerialize, ThrowsIfWhatItReadWasChangedSince) {
  for (const bool change_parameter : {false, true}) {
    Tensor x = leaf({1, 2}), weight = leaf({3, 4});
    const auto function = [weight](const Tensor& in, Generator*) { return times(in, weight); };
    const Tensor y = rematerialize(function, x, std::vector<Tensor>{weight});
    {
      const NoGradGuard no_grad;
      (change_parameter ? weight : x).fill(1);
    }
    expect_error<RuntimeError>(
        [&] {
          backward(y, vector({1, 1}));
        },
        change_parameter ? "input 1 of shape (2,) was changed" : "input 0 of shape (2,)");
  }
}

}  // namespace
}  // namespace tapehead
