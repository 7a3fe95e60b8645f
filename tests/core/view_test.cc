#include "tapehead/core/view.h"

#include <fmt/format.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "tapehead/core/random.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Inputs = std::vector<Tensor>;

Tensor iota(const Shape& shape) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  std::iota(values.begin(), values.end(), 0);
  return Tensor::from<double>(shape, values);
}

// Element of row-major index `i`, read through the strides: what every view is compared with.
double at(const Tensor& x, int64_t i) {
  int64_t offset = 0;
  for (int64_t axis = x.dim(); axis-- > 0;) {
    offset += i % x.size(axis) * x.strides()[static_cast<size_t>(axis)];
    i /= x.size(axis);
  }
  return x.data<double>()[offset];
}

std::vector<double> elements(const Tensor& x) {
  std::vector<double> values;
  for (int64_t i = 0; i < x.numel(); ++i) values.push_back(at(x, i));
  return values;
}

// A tensor of `shape` that is strided in a random way: permuted, with gaps, or expanded.
Tensor random_strided(Generator& random, const Shape& shape) {
  std::vector<int64_t> order(static_cast<size_t>(shape.dim()));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  std::vector<int64_t> sizes(order.size()), gaps(order.size()), inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    gaps[i] = random.below(3) == 0 ? 2 : 1;
    sizes[i] = shape[order[i]] * gaps[i];
    inverse[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
    if (shape[order[i]] > 0 && random.below(6) == 0) gaps[i] = 0;  // expanded below
    if (gaps[i] == 0) sizes[i] = 1;
  }
  Tensor x = iota(Shape(sizes));
  for (size_t i = 0; i < order.size(); ++i) {
    const auto axis = static_cast<int64_t>(i);
    if (gaps[i] == 0) {
      x = expand(x, x.shape().with(axis, shape[order[i]]));
    } else {
      x = slice(x, axis, 0, sizes[i], gaps[i]);
    }
  }
  return permute(x, inverse);
}

// The inputs on which views are gradchecked: dense, transposed, sliced, size-1 and empty, all of `shape`.
std::vector<Tensor> strided_leaves(const Shape& shape) {
  std::vector<Tensor> leaves = {iota(shape)};
  Generator random{.seed = 5};
  while (leaves.size() < 6) {
    const Tensor x = random_strided(random, shape);
    bool expanded = false;
    for (int64_t axis = 0; axis < x.dim(); ++axis) {
      expanded |= x.size(axis) > 1 && x.strides()[static_cast<size_t>(axis)] == 0;
    }
    if (!expanded) leaves.push_back(x.detach());
  }
  for (Tensor& leaf : leaves) leaf.set_requires_grad();
  return leaves;
}

TEST(View, GradientsOfEveryViewOnStridedInputs) {
  const std::vector<std::pair<const char*, std::function<Tensor(const Inputs&)>>> functions = {
      {"reshape",
       [](const Inputs& in) {
         return reshape(in[0], {-1, 2});
       }},
      {"transpose", [](const Inputs& in) { return transpose(in[0], 0, -1); }},
      {"permute",
       [](const Inputs& in) {
         return permute(in[0], {2, 0, -2});
       }},
      {"slice", [](const Inputs& in) { return slice(in[0], 2, 1, 100, 2); }},
      {"slice of nothing", [](const Inputs& in) { return slice(in[0], 2, 3, 3); }},
      {"select", [](const Inputs& in) { return select(in[0], 1, -1); }},
      {"expand",
       [](const Inputs& in) {
         return expand(unsqueeze(in[0], 1), {3, 2, 2, 3, 4});
       }},
      {"squeeze", [](const Inputs& in) { return squeeze(slice(in[0], 0, 1, 2), 0); }},
      {"unsqueeze", [](const Inputs& in) { return unsqueeze(in[0], -1); }},
      {"contiguous", [](const Inputs& in) { return contiguous(in[0]); }},
      {"cast", [](const Inputs& in) { return cast(in[0], DType::f64); }},
      {"all together",
       [](const Inputs& in) { return reshape(slice(transpose(in[0], 0, 2), 1, 0, 3, 2), {-1}); }},
  };
  for (const auto& [name, function] : functions) {
    SCOPED_TRACE(name);
    for (const Tensor& leaf : strided_leaves({2, 3, 4})) EXPECT_NO_THROW(expect_gradcheck(function, {leaf}));
  }
}

TEST(View, GradientsOfEmptyAndSizeOneInputs) {
  for (const Shape& shape : {Shape{0, 3, 4}, Shape{2, 0, 4}, Shape{1, 1, 1}, Shape{1, 3, 1}}) {
    Tensor x = iota(shape).set_requires_grad();
    SCOPED_TRACE(shape.str());
    const int64_t n = shape.numel();
    EXPECT_NO_THROW(expect_gradcheck([&](const Inputs& in) { return reshape(in[0], {n, 1}); }, {x}));
    EXPECT_NO_THROW(expect_gradcheck([](const Inputs& in) { return permute(in[0], {2, 0, 1}); }, {x}));
    EXPECT_NO_THROW(expect_gradcheck([](const Inputs& in) { return slice(in[0], 1, 0, 2, 2); }, {x}));
    EXPECT_NO_THROW(expect_gradcheck([](const Inputs& in) { return select(in[0], -1, 0); }, {x}));
    EXPECT_NO_THROW(
        expect_gradcheck([&](const Inputs& in) { return expand(in[0], shape.insert(0, 2)); }, {x}));
    EXPECT_NO_THROW(expect_gradcheck([](const Inputs& in) { return unsqueeze(in[0], 0); }, {x}));
  }
}

TEST(View, ViewsShareStorage) {
  const Tensor x = iota({2, 3, 4});
  EXPECT_EQ(reshape(x, {6, 4}).storage(), x.storage());
  EXPECT_EQ(permute(x, {2, 0, 1}).storage(), x.storage());
  EXPECT_EQ(slice(x, 1, 0, 2).storage(), x.storage());
  EXPECT_EQ(select(transpose(x, 0, 2), 1, 1).storage(), x.storage());
  EXPECT_EQ(expand(x, {5, 2, 3, 4}).storage(), x.storage());
  EXPECT_EQ(unsqueeze(transpose(x, 0, 2), 1).storage(), x.storage());
  EXPECT_NE(reshape(transpose(x, 0, 2), {24}).storage(), x.storage()) << "strides do not allow a view";
}

// Whether `shape` can show x's elements in order: the oracle fixes the strides from the elements' places and
// then checks all of them.
bool can_be_viewed(const Tensor& x, const Shape& shape) {
  std::vector<int64_t> places;  // of each element, in row-major order
  for (int64_t i = 0; i < x.numel(); ++i) {
    int64_t place = 0, rest = i;
    for (int64_t axis = x.dim(); axis-- > 0;) {
      place += rest % x.size(axis) * x.strides()[static_cast<size_t>(axis)];
      rest /= x.size(axis);
    }
    places.push_back(place);
  }
  const Strides steps = shape.contiguous_strides();
  for (int64_t i = 0; i < shape.numel(); ++i) {
    int64_t place = places[0], rest = i;
    for (int64_t axis = shape.dim(); axis-- > 0;) {
      const int64_t index = rest % shape[axis];
      rest /= shape[axis];
      if (index > 0)
        place += index * (places[static_cast<size_t>(steps[static_cast<size_t>(axis)])] - places[0]);
    }
    if (place != places[static_cast<size_t>(i)]) return false;
  }
  return true;
}

TEST(View, ReshapeOfRandomStridedTensorsCopiesOnlyWhereNoViewExists) {
  Generator random{.seed = 11};
  int views = 0, copies = 0;
  for (int trial = 0; trial < 5000; ++trial) {
    // Two factorizations of one number, with ones strewn in.
    const auto factors = [&](std::vector<int64_t> primes) {
      std::vector<int64_t> sizes(1 + random.below(5), 1);
      for (const int64_t p : primes) sizes[random.below(sizes.size())] *= p;
      return sizes;
    };
    const std::vector<int64_t> primes =
        random.below(2) ? std::vector<int64_t>{2, 2, 3} : std::vector<int64_t>{2, 3, 2, 2, 3};
    const Shape from(factors(primes)), to(factors(primes));
    const Tensor x = random_strided(random, from);
    const Tensor y = reshape(x, to.sizes());
    ASSERT_EQ(y.shape(), to);
    ASSERT_EQ(elements(y), elements(x)) << from.str() << " to " << to.str();
    const bool view = y.storage() == x.storage();
    ASSERT_EQ(view, can_be_viewed(x, to))
        << from.str() << " with strides " << fmt::format("{}", fmt::join(x.strides(), ",")) << " to "
        << to.str();
    ++(view ? views : copies);
  }
  EXPECT_GT(views, 500);
  EXPECT_GT(copies, 500);
}

TEST(View, ReshapeComputesOneSize) {
  EXPECT_EQ(reshape(iota({2, 3, 4}), {4, -1}).shape(), Shape({4, 6}));
  EXPECT_EQ(reshape(iota({1}), {}).shape(), Shape());
  EXPECT_EQ(reshape(iota({}), {-1}).shape(), Shape({1}));
  EXPECT_EQ(reshape(iota({0, 3}), {-1, 3}).shape(), Shape({0, 3}));
  EXPECT_EQ(reshape(iota({0, 3}), {5, 0}).shape(), Shape({5, 0}));
}

TEST(View, ReshapeErrorsStateBothShapes) {
  const Tensor x = iota({2, 3});
  EXPECT_THAT([&] { reshape(x, {4}); }, ThrowsMessage<ValueError>(AllOf(
                                            HasSubstr("[reshape]"), HasSubstr("(2, 3)"), HasSubstr("(4,)"))));
  EXPECT_THAT(
      [&] {
        reshape(x, {4, -1});
      },
      ThrowsMessage<ValueError>(AllOf(HasSubstr("[reshape]"), HasSubstr("(2, 3)"))));
  EXPECT_THAT([&] { reshape(x, {-1, -1}); }, ThrowsMessage<ValueError>(HasSubstr("one may be -1")));
  EXPECT_THAT([&] { reshape(x, {-2, -3}); }, ThrowsMessage<ValueError>(HasSubstr("[reshape]")));
  EXPECT_THAT([&] { reshape(iota({0, 3}), {-1, 0}); }, ThrowsMessage<ValueError>(HasSubstr("[reshape]")));
}

TEST(View, PermuteMovesDimensions) {
  const Tensor x = iota({2, 3, 4});
  const Tensor y = permute(x, {2, 0, 1});
  EXPECT_EQ(y.shape(), Shape({4, 2, 3}));
  for (int64_t a = 0; a < 4; ++a) {
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t c = 0; c < 3; ++c)
        EXPECT_EQ(select(select(select(y, 0, a), 0, b), 0, c).item(),
                  (b * 3 + c) * 4.0 + static_cast<double>(a));
    }
  }
  EXPECT_EQ(transpose(x, -1, 0).shape(), Shape({4, 3, 2}));
  EXPECT_THAT(
      [&] {
        permute(x, {0, 1});
      },
      ThrowsMessage<ValueError>(AllOf(HasSubstr("[permute]"), HasSubstr("(2, 3, 4)"))));
  EXPECT_THAT([&] { permute(x, {0, 1, -2}); }, ThrowsMessage<ValueError>(HasSubstr("twice")));
  EXPECT_THROW(permute(x, {0, 1, 3}), ValueError);
  EXPECT_THROW(transpose(x, 0, 3), ValueError);
}

TEST(View, SliceClampsItsEnds) {
  const int64_t most = std::numeric_limits<int64_t>::max(), least = std::numeric_limits<int64_t>::min();
  const Tensor x = iota({6});
  EXPECT_THAT(elements(slice(x, 0, 1, 4)), ElementsAre(1, 2, 3));
  EXPECT_THAT(elements(slice(x, 0, -3, -1)), ElementsAre(3, 4));
  EXPECT_THAT(elements(slice(x, -1, least, most, 2)), ElementsAre(0, 2, 4));
  EXPECT_THAT(elements(slice(x, 0, 1, most, 4)), ElementsAre(1, 5));
  EXPECT_THAT(elements(slice(x, 0, 2, most, most)), ElementsAre(2));
  EXPECT_EQ(slice(x, 0, 4, 2).numel(), 0);
  EXPECT_EQ(slice(x, 0, 6, 9).numel(), 0);
  EXPECT_EQ(slice(x, 0, 9, 12).numel(), 0);
  EXPECT_EQ(slice(x, 0, 0, least).numel(), 0);
}

// Its elements have no address to count from.
TEST(View, SlicesOfAnEmptyTensorHaveNoOffset) {
  const Tensor x = Tensor::zeros({0, 6});
  EXPECT_EQ(slice(x, 1, 2, 4).shape(), Shape({0, 2}));
  EXPECT_EQ(slice(x, 1, 2, 4).raw_data(), x.raw_data());
  EXPECT_EQ(select(x, 1, 5).shape(), Shape({0}));
}

TEST(View, SliceWantsAForwardStep) {
  for (const int64_t step : {0, -1}) {
    EXPECT_THAT([&] { slice(iota({6}), 0, 0, 6, step); },
                ThrowsMessage<ValueError>(
                    AllOf(HasSubstr("[slice]"), HasSubstr(std::to_string(step)), HasSubstr("(6,)"))));
  }
  EXPECT_THROW(slice(iota({6}), 1, 0, 6), ValueError);
}

TEST(View, SelectTakesOneIndex) {
  const Tensor x = iota({2, 3});
  EXPECT_THAT(elements(select(x, 1, -1)), ElementsAre(2, 5));
  EXPECT_THAT(elements(select(x, 0, 1)), ElementsAre(3, 4, 5));
  for (const int64_t index : {3, -4}) {
    EXPECT_THAT([&] { select(x, 1, index); },
                ThrowsMessage<ValueError>(
                    AllOf(HasSubstr("[select]"), HasSubstr(std::to_string(index)), HasSubstr("(2, 3)"))));
  }
  EXPECT_THROW(select(iota({0}), 0, 0), ValueError);
}

TEST(View, ExpandRepeats) {
  const Tensor y = expand(iota({2, 1}), {3, 2, 2});
  EXPECT_THAT(elements(y), ElementsAre(0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1));
  EXPECT_THAT(
      [] {
        expand(iota({2, 3}), {2, 4});
      },
      ThrowsMessage<ValueError>(AllOf(HasSubstr("[expand]"), HasSubstr("(2, 3)"), HasSubstr("(2, 4)"))));
  EXPECT_THROW(expand(iota({2, 3}), {3}), ValueError);
}

TEST(View, SqueezeWantsSizeOne) {
  EXPECT_EQ(squeeze(iota({2, 1, 3}), -2).shape(), Shape({2, 3}));
  EXPECT_EQ(unsqueeze(iota({2, 3}), -1).shape(), Shape({2, 3, 1}));
  EXPECT_THAT(
      [] {
        squeeze(iota({2, 3}), 0);
      },
      ThrowsMessage<ValueError>(AllOf(HasSubstr("[squeeze]"), HasSubstr("(2, 3)"))));
  EXPECT_THROW(unsqueeze(iota({2}), 2), ValueError);
}

TEST(View, AxesOutOfRangeNameTheOp) {
  const Tensor x = iota({2, 1});
  const auto refuse = [](const std::function<void()>& call, const std::string& op) {
    expect_error<ValueError>(call, "[" + op + "] axis 5 is out of range");
  };
  refuse([&] { transpose(x, 0, 5); }, "transpose");
  refuse([&] { permute(x, {0, 5}); }, "permute");
  refuse([&] { slice(x, 5, 0, 1); }, "slice");
  refuse([&] { select(x, 5, 0); }, "select");
  refuse([&] { squeeze(x, 5); }, "squeeze");
  refuse([&] { unsqueeze(x, 5); }, "unsqueeze");
  refuse([&] { x.size(5); }, "size");
}

TEST(View, CastConvertsTheGradientBack) {
  Tensor x = Tensor::full({2}, 1.5).set_requires_grad();
  const Tensor y = cast(x, DType::f64);
  EXPECT_EQ(y.dtype(), DType::f64);
  backward(y, Tensor::full({2}, 0.25, DType::f64));
  EXPECT_EQ(x.grad().dtype(), DType::f32);
  EXPECT_THAT(x.grad().to_vector<float>(), ElementsAre(0.25, 0.25));
  EXPECT_THAT([&] { cast(x, DType::i32); },
              ThrowsMessage<TypeError>(AllOf(HasSubstr("[cast]"), HasSubstr("i32"))));
  EXPECT_THAT(cast(Tensor::full({1}, 2.9), DType::i32).to_vector<int32_t>(), ElementsAre(2));
}

// The same dtype, yet its own gradient slot: x is not the result.
TEST(View, CastToTheSameDTypeIsStillRecorded) {
  Tensor x = Tensor::full({2}, 1.5).set_requires_grad();
  const Tensor y = cast(x, DType::f32);
  EXPECT_FALSE(y.is_same(x));
  backward(y, Tensor::full({2}, 1));
  EXPECT_THAT(x.grad().to_vector<float>(), ElementsAre(1, 1));
}

TEST(View, ContiguousReturnsWhatIsDenseAlready) {
  Tensor x = iota({2, 3}).set_requires_grad();
  EXPECT_TRUE(contiguous(x).is_same(x));
  const Tensor y = contiguous(transpose(x, 0, 1));
  EXPECT_TRUE(y.is_contiguous());
  EXPECT_TRUE(y.requires_grad());
}

}  // namespace
}  // namespace tapehead
