#include "tapehead/core/run_comparison.h"

#include <fmt/format.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tapehead/core/rematerialize.h"
#include "tapehead/core/tape_observer.h"
#include "tapehead/core/view.h"
#include "tapehead/tests/core/small_ops.h"

namespace tapehead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// ---- The observer

/// Writes down what it is told, and adds to numbers where the test asks for it.
class Watch final : public TapeObserver {
 public:
  explicit Watch(std::vector<std::string>& seen, std::string name = "")
      : seen_(seen), name_(std::move(name)) {}

  void on_result(const char* op, Tensor& result, std::span<const Tensor>) override {
    seen_.push_back(fmt::format("{}{} {}", name_, op, fmt::join(result.to_vector<double>(), " ")));
    if (op == result_of) result.copy_from(multiply(result, result, 2));
  }
  void on_gradient(const char* op, size_t input, Tensor& sum) override {
    seen_.push_back(fmt::format("{}{}/{} {}", name_, op, input, fmt::join(sum.to_vector<double>(), " ")));
    if (op == gradient_of) sum = multiply(sum, sum, 2);
  }

  std::string result_of, gradient_of;

 private:
  std::vector<std::string>& seen_;
  std::string name_;
};

Tensor sum_of_square(const Tensor& x) { return add({square(x), x}); }

TEST(TapeObserver, IsToldResultsAndThenGradientsInTheirOrder) {
  const Tensor x = leaf({3});
  std::vector<std::string> seen;
  const Watch watch(seen);
  backward(sum_of_square(x));
  EXPECT_THAT(
      seen, ElementsAre("square 9", "add 12", "add/0 1", "add/1 1", "square/0 7", "accumulate_gradient/0 7"));
}

TEST(TapeObserver, IsToldWhatIsNotRecordedAndNoViews) {
  std::vector<std::string> seen;
  const Watch watch(seen);
  const NoGradGuard no_grad;
  square(reshape(vector({1, 2}), {2, 1}));
  EXPECT_THAT(seen, ElementsAre("square 1 4"));
}

TEST(TapeObserver, NumbersThatItPutsInTheirPlaceCount) {
  const Tensor x = leaf({3});
  std::vector<std::string> seen;
  Watch watch(seen);
  watch.result_of = "square";    // 9 -> 162
  watch.gradient_of = "square";  // 6 + 1 -> 98
  const Tensor y = sum_of_square(x);
  EXPECT_EQ(y.item(), 165);
  backward(y);
  EXPECT_EQ(grad(x), std::vector<double>{98});
}

TEST(TapeObserver, TheFirstOfSeveralIsToldFirst) {
  std::vector<std::string> seen;
  {
    Watch first(seen, "first ");
    first.result_of = "square";
    const Watch second(seen, "second ");
    square(leaf({2}));
  }
  square(leaf({2}));
  EXPECT_THAT(seen, ElementsAre("first square 4", "second square 32"));
}

// ---- Two runs

// Adds to the first element.
void add_to_first(const Tensor& x, double amount) {
  x.alias({}, {}, x.offset()).fill(x.to_vector<double>()[0] + amount);
}

/// x² with an error in its result, and in its gradient.
Tensor wrong_square(const Tensor& x, double in_result, double in_gradient) {
  const Tensor y = multiply(x, x);
  add_to_first(y, in_result);
  return record("square", y, {x}, {x}, [in_gradient](const Upstream& up) -> Gradients {
    Tensor g = multiply(up.grad, up.saved(0), 2);
    add_to_first(g, in_gradient);
    return {g};
  });
}

std::vector<std::string> names_of_wrong(const std::vector<Difference>& differences) {
  std::vector<std::string> names;
  for (const Difference& d : differences) {
    if (d.error > 0)
      names.push_back(
          fmt::format("{}{} #{} {:.3g}", d.op, d.input ? fmt::format("/{}", *d.input) : "", d.call, d.error));
  }
  return names;
}

// The second of three squares is wrong by 1 in its result and by 3 in its gradient; what
// depends on it is not blamed.
TEST(CompareRuns, NamesTheOperationThatIsWrongAndNoneThatFollows) {
  const auto run = [](double in_result, double in_gradient) {
    Tensor x = leaf({1, 2});
    backward(square(add({wrong_square(square(x), in_result, in_gradient), x})), vector({1, 1}));
  };
  // Of the wrong one: input (1, 4), result (1, 16), upstream gradient (4, 36), gradient (8, 288).
  EXPECT_THAT(names_of_wrong(compare_runs([&] { run(0, 0); }, [&] { run(1, 3); })),
              ElementsAre(fmt::format("square #2 {:.3g}", 1 / std::sqrt(1 + 256)),
                          fmt::format("square/0 #2 {:.3g}", 3 / std::sqrt(64 + 288 * 288))));
  EXPECT_THAT(names_of_wrong(compare_runs([&] { run(0, 0); }, [&] { run(0, 0); })), ElementsAre());
}

TEST(CompareRuns, TellsShapesDtypesAndCalls) {
  const auto run = [] {
    const Tensor x = leaf({1, 2});
    backward(square(square(x)), vector({1, 1}));
  };
  const std::vector<Difference> all = compare_runs(run, run);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[1].op, "square");
  EXPECT_EQ(all[1].call, 2);
  EXPECT_EQ(all[1].shape, Shape({2}));
  EXPECT_EQ(all[1].dtype, DType::f64);
  EXPECT_EQ(all[3].input, std::optional<size_t>(0));
  EXPECT_EQ(all[3].call, 2);
  EXPECT_EQ(all[4].op, "accumulate_gradient");
}

TEST(CompareRuns, MeasuresInTheNormAndTakesEqualInfinitiesForEqual) {
  constexpr double kInf = std::numeric_limits<double>::infinity(),
                   kNaN = std::numeric_limits<double>::quiet_NaN();
  const auto error = [](const std::vector<double>& tested, const std::vector<double>& reference) {
    const auto run = [](const std::vector<double>& values) {
      return [values] { record("op", vector(values), {}, {}, nullptr); };
    };
    return compare_runs(run(reference), run(tested)).at(0).error;
  };
  EXPECT_DOUBLE_EQ(error({3, 4.5}, {3, 4}), 0.1);
  EXPECT_EQ(error({kInf, kNaN, 1}, {kInf, kNaN, 1}), 0);
  EXPECT_DOUBLE_EQ(error({-kInf, 3}, {-kInf, 2}), 0.5);
  EXPECT_EQ(error({kInf, 1}, {-kInf, 1}), kInf);
  EXPECT_EQ(error({kNaN}, {1}), kInf);
  EXPECT_EQ(error({1e-30}, {0}), kInf);
  EXPECT_EQ(error({0, 0}, {0, 0}), 0);
}

TEST(CompareRuns, GoesThroughWhatIsComputedAgain) {
  const auto run = [](double in_result) {
    Tensor x = leaf({1, 2});
    bool again = false;
    const auto block = [=](const Tensor& in, Generator*) mutable {
      const double error = again ? in_result : 0;
      again = true;
      return wrong_square(in, error, 0);
    };
    backward(rematerialize(block, x, {}), vector({1, 1}));
  };
  EXPECT_THAT(names_of_wrong(compare_runs([&] { run(0); }, [&] { run(1); })),
              ElementsAre(fmt::format("square #2 {:.3g}", 1 / std::sqrt(1 + 16.0))));
}

TEST(CompareRuns, RunsThatPartAreAnErrorThatNamesBoth) {
  const auto squares = [](int count, int64_t size) {
    return [=] {
      for (int i = 0; i < count; ++i) square(Tensor::zeros({size}, DType::f64));
    };
  };
  const auto expect = [](auto reference, auto tested, const char* part) {
    EXPECT_THAT([&] { compare_runs(reference, tested); }, ThrowsMessage<RuntimeError>(HasSubstr(part)));
  };
  expect(
      squares(2, 3),
      [] {
        add({vector({1, 2, 3})});
      },
      "part at value 1: the reference has the result of square, f64 of shape (3,), the tested run the result "
      "of add");
  expect(squares(1, 3), squares(1, 4),
         "f64 of shape (3,), the tested run the result of square, f64 of shape (4,)");
  expect(squares(2, 3), squares(1, 3), "ends after 1 of the reference's 2 values");
  expect(squares(1, 3), squares(2, 3), "the reference run ends after 1 values");
}

}  // namespace
}  // namespace tapehead
