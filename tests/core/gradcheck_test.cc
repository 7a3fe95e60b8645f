#include "tapehead/core/gradcheck.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tapehead/core/view.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Inputs = std::vector<Tensor>;

Tensor leaf(const std::vector<double>& values) {
  return Tensor::from<double>({static_cast<int64_t>(values.size())}, values).set_requires_grad();
}

// x³, whose gradient is multiplied by `error` at element `where`.
Tensor cube(const Tensor& x, double error = 1, size_t where = 0) {
  std::vector<double> values = x.to_vector<double>(), slopes = values;
  for (double& v : values) v = v * v * v;
  for (double& s : slopes) s = 3 * s * s;
  if (!slopes.empty()) slopes[where] *= error;
  const Shape shape = x.shape();
  return record("cube", Tensor::from<double>(shape, values), {x}, {}, [=](const Upstream& up) -> Gradients {
    std::vector<double> g = up.grad.to_vector<double>();
    for (size_t i = 0; i < g.size(); ++i) g[i] *= slopes[i];
    return {Tensor::from<double>(shape, g)};
  });
}

TEST(Gradcheck, PassesWhatIsRight) {
  EXPECT_NO_THROW(gradcheck([](const Inputs& in) { return cube(in[0]); }, {leaf({1, -2, 0.5})}));
  EXPECT_NO_THROW(gradcheck([](const Inputs& in) { return cube(in[0]); }, {leaf({})}));
}

TEST(Gradcheck, FindsOneWrongElementAndNamesIt) {
  const Tensor constant = Tensor::zeros({2});
  for (const double error : {1.001, 0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(
        [&] {
          gradcheck([&](const Inputs& in) { return cube(in[1], error, 2); }, {constant, leaf({1, -2, 0.5})});
        },
        ThrowsMessage<RuntimeError>(AllOf(HasSubstr("input 1"), HasSubstr("element 2"), HasSubstr("(3,)"))))
        << error;
  }
}

TEST(Gradcheck, FindsAGradientThatIsMissing) {
  EXPECT_THROW(gradcheck(
                   [](const Inputs& in) {
                     return record("lost", cube(in[0]).detach(), {in[0]}, {},
                                   [](const Upstream&) -> Gradients { return {Tensor()}; });
                   },
                   {leaf({1, 2})}),
               RuntimeError);
}

TEST(Gradcheck, AnInputThatDoesNotMatterHasNoGradient) {
  EXPECT_NO_THROW(gradcheck([](const Inputs& in) { return cube(in[0]); }, {leaf({1, 2}), leaf({3})}));
}

TEST(Gradcheck, ChecksStridedInputsWhereTheyStand) {
  Tensor x = transpose(reshape(leaf({1, 2, 3, 4, 5, 6}).detach(), {2, 3}), 0, 1).set_requires_grad();
  EXPECT_NO_THROW(gradcheck([](const Inputs& in) { return cube(in[0]); }, {x}));
  EXPECT_THAT([&] { gradcheck([](const Inputs& in) { return cube(in[0], 2, 1); }, {x}); },
              ThrowsMessage<RuntimeError>(HasSubstr("element 1")));
}

TEST(Gradcheck, RestoresInputsAndClearsGradients) {
  const std::vector<double> values = {1.0 / 3, -2, 1e-9};
  Tensor x = leaf(values);
  x.set_grad(Tensor::full({3}, 5, DType::f64));
  gradcheck([](const Inputs& in) { return cube(in[0]); }, {x});
  EXPECT_EQ(x.to_vector<double>(), values);
  EXPECT_FALSE(x.grad().defined());
}

TEST(Gradcheck, RestoresInputsWhenTheFunctionThrows) {
  Tensor x = leaf({1, 2});
  int calls = 0;
  EXPECT_THROW(gradcheck(
                   [&](const Inputs& in) {
                     check<ValueError>(++calls < 3, "enough");
                     return cube(in[0]);
                   },
                   {x}),
               ValueError);
  EXPECT_EQ(x.to_vector<double>(), std::vector<double>({1, 2}));
}

TEST(Gradcheck, WantsF64AndSomethingToCheck) {
  const auto identity = [](const Inputs& in) { return reshape(in[0], {2}); };
  EXPECT_THAT([&] { gradcheck(identity, {Tensor::zeros({2}).set_requires_grad()}); },
              ThrowsMessage<TypeError>(HasSubstr("f32")));
  EXPECT_THAT([&] { gradcheck(identity, {Tensor::zeros({2}, DType::f64)}); },
              ThrowsMessage<RuntimeError>(HasSubstr("requires a gradient")));
  EXPECT_THROW(gradcheck([](const Inputs& in) { return cast(in[0], DType::f32); }, {leaf({1, 2})}),
               TypeError);
}

// Hazard: an exception has left the scopes of its traces before GoogleTest hears of it.
TEST(ExpectGradcheck, SaysInWhichScopeItFailed) {
  EXPECT_NONFATAL_FAILURE(
      {
        SCOPED_TRACE("the third case");
        expect_gradcheck([](const Inputs& in) { return cube(in[0], 2); }, {leaf({1})});
      },
      "the third case");
  EXPECT_NONFATAL_FAILURE(expect_gradcheck([](const Inputs& in) { return cube(in[0], 2); }, {leaf({1})}),
                          "element 0");
}

}  // namespace
}  // namespace tapehead
