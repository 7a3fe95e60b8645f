#include "tapehead/core/tensor.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "tapehead/core/view.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Tensor iota(const Shape& shape) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  std::iota(values.begin(), values.end(), 0);
  return Tensor::from<double>(shape, values);
}

TEST(Tensor, IsUndefinedUntilMade) {
  EXPECT_FALSE(Tensor().defined());
  EXPECT_TRUE(Tensor(Shape{}).defined());
}

TEST(Tensor, KeepsItsValuesInRowMajorOrder) {
  const Tensor x = iota({2, 3});
  EXPECT_EQ(x.dtype(), DType::f64);
  EXPECT_EQ(x.strides(), Strides({3, 1}));
  EXPECT_EQ(x.bytes(), 48);
  EXPECT_EQ(x.data<double>()[4], 4);
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(transpose(x, 0, 1).to_vector<int32_t>(), ElementsAre(0, 3, 1, 4, 2, 5));
}

TEST(Tensor, TakesAsManyValuesAsItsShapeHas) {
  EXPECT_THAT(
      [] {
        Tensor::from<float>({2, 3}, std::vector<float>(5));
      },
      ThrowsMessage<ValueError>(AllOf(HasSubstr("(2, 3)"), HasSubstr("6"), HasSubstr("5"))));
  EXPECT_THROW(Tensor::from<float>({0}, std::vector<float>(1)), ValueError);
}

TEST(Tensor, BytesThatFitNoInt64AreRefused) {
  EXPECT_EQ(bytes_of({(int64_t{1} << 60) - 1}, DType::f64), std::numeric_limits<int64_t>::max() - 7);
  EXPECT_EQ(bytes_of({3, 0}, DType::f16), 0);
  EXPECT_THAT([] { bytes_of({int64_t{1} << 60}, DType::f64); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr("1152921504606846976"), HasSubstr("f64"))));
}

TEST(Tensor, TooManyBytesAreRefusedBeforeAnyIsAllocated) {
  EXPECT_THAT([] { Tensor({int64_t{1} << 61}); }, ThrowsMessage<ValueError>(HasSubstr("too many bytes")));
}

TEST(Tensor, EmptyScalarAndSizeOneShapesWork) {
  const Tensor empty = Tensor::zeros({2, 0, 3});
  EXPECT_EQ(empty.numel(), 0);
  EXPECT_TRUE(empty.is_contiguous());
  EXPECT_TRUE(empty.to_vector<float>().empty());
  EXPECT_EQ(empty.clone().shape(), Shape({2, 0, 3}));
  EXPECT_EQ(Tensor::from<float>({0}, std::vector<float>()).numel(), 0);
  EXPECT_TRUE(transpose(empty, 0, 2).is_contiguous()) << "whatever its strides";

  EXPECT_EQ(Tensor::scalar(2.5).shape(), Shape());
  EXPECT_EQ(Tensor::scalar(2.5).item(), 2.5);
  EXPECT_EQ(Tensor::full({1, 1}, 7, DType::i32).item(), 7);
  EXPECT_TRUE(transpose(Tensor::zeros({1, 4, 1}), 0, 2).is_contiguous());
}

TEST(Tensor, ItemWantsOneElement) {
  EXPECT_THAT([] { Tensor::zeros({2}).item(); }, ThrowsMessage<ValueError>(HasSubstr("(2,)")));
  EXPECT_THROW(Tensor::zeros({0}).item(), ValueError);
}

TEST(Tensor, ReadingAsAnotherDTypeIsATypeError) {
  Tensor x = Tensor::zeros({2});
  EXPECT_THAT([&] { x.data<double>(); }, ThrowsMessage<TypeError>(AllOf(HasSubstr("f32"), HasSubstr("f64"))));
  EXPECT_THROW(x.mutable_data<int32_t>(), TypeError);
}

TEST(Tensor, EveryDTypeConvertsToEveryOther) {
  const DType all[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32};
  for (const DType from : all) {
    for (const DType to : all) {
      const Tensor x = Tensor::from<double>({2, 2}, std::vector<double>{0, 1, -3, 100}).to(from).to(to);
      EXPECT_EQ(x.dtype(), to);
      EXPECT_THAT(x.to_vector<double>(), ElementsAre(0, 1, -3, 100)) << name(from) << " to " << name(to);
    }
  }
}

// By way of float, 1 + 2^-8 + 2^-30 would become a tie, and go down to 1.
TEST(Tensor, ConversionFromF64RoundsOnce) {
  const Tensor x = Tensor::full({1}, 1 + 0x1p-8 + 0x1p-30, DType::f64);
  EXPECT_EQ(x.to(DType::bf16).item(), 1 + 0x1p-7);
}

TEST(Tensor, CopiesOfAHandleAreOneTensor) {
  Tensor a = Tensor::zeros({2});
  Tensor b = a;
  b.fill(1);
  EXPECT_TRUE(a.is_same(b));
  EXPECT_THAT(a.to_vector<float>(), ElementsAre(1, 1));
  EXPECT_FALSE(a.detach().is_same(a));
  EXPECT_EQ(a.detach().raw_data(), a.raw_data());
  EXPECT_NE(a.clone().raw_data(), a.raw_data());
}

TEST(Tensor, ContiguousCopiesOnlyWhatIsNot) {
  const Tensor x = iota({2, 3});
  EXPECT_EQ(x.contiguous().raw_data(), x.raw_data());
  const Tensor t = transpose(x, 0, 1);
  EXPECT_FALSE(t.is_contiguous());
  EXPECT_NE(t.contiguous().raw_data(), x.raw_data());
  EXPECT_EQ(t.contiguous().to_vector<double>(), t.to_vector<double>());
}

TEST(Tensor, WritingInPlaceCountsTheVersionUpForAllViews) {
  Tensor x = iota({2, 3});
  Tensor row = select(x, 0, 1);
  const int64_t before = x.version();
  row.fill(9);
  EXPECT_GT(x.version(), before);
  EXPECT_THAT(x.to_vector<double>(), ElementsAre(0, 1, 2, 9, 9, 9));
  const int64_t then = row.version();
  x.mutable_data<double>()[0] = 5;
  EXPECT_GT(row.version(), then);
  const int64_t now = x.version();
  (void)x.data<double>();
  EXPECT_EQ(x.version(), now) << "reading is no change";
  EXPECT_EQ(x.clone().version(), iota({1}).version()) << "a copy has a counter of its own";
}

TEST(Tensor, CopyFromBroadcastsAndConverts) {
  Tensor x = Tensor::zeros({2, 3});
  x.copy_from(iota({3}));
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(0, 1, 2, 0, 1, 2));
  transpose(x, 0, 1).copy_from(iota({3, 2}));
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(0, 2, 4, 1, 3, 5));
  EXPECT_THAT(
      [&] { x.copy_from(iota({2})); },
      ThrowsMessage<ValueError>(AllOf(HasSubstr("[copy_from]"), HasSubstr("(2,)"), HasSubstr("(2, 3)"))));
}

TEST(Tensor, CopyFromAnOverlappingViewReadsWhatWasThereBefore) {
  Tensor x = iota({3, 3});
  x.copy_from(transpose(x, 0, 1));
  EXPECT_THAT(x.to_vector<double>(), ElementsAre(0, 3, 6, 1, 4, 7, 2, 5, 8));
  Tensor y = iota({5});
  slice(y, 0, 1, 5).copy_from(slice(y, 0, 0, 4));
  EXPECT_THAT(y.to_vector<double>(), ElementsAre(0, 0, 1, 2, 3));
}

TEST(Tensor, AnExpandedTensorIsNotWritten) {
  Tensor x = expand(Tensor::zeros({1, 3}, DType::f64), {2, 3});
  EXPECT_THAT([&] { x.copy_from(iota({2, 3})); }, ThrowsMessage<ValueError>(HasSubstr("expanded")));
  EXPECT_THAT([&] { x.fill(1); }, ThrowsMessage<ValueError>(HasSubstr("[fill]")));
}

TEST(Tensor, OverStaysInsideItsStorage) {
  const auto storage = std::make_shared<Storage>(Device{}, 16);
  EXPECT_EQ(Tensor::over(storage, {2}, DType::f32, 2).numel(), 2);
  EXPECT_THROW(Tensor::over(storage, {2}, DType::f32, 3), ValueError);
  EXPECT_THROW(Tensor::over(storage, {2}, DType::f32, -1), ValueError);
  EXPECT_THROW(Tensor::over(storage, {int64_t{1} << 61}, DType::f64), ValueError) << "bytes overflow";
  EXPECT_THROW(Tensor::over(storage, {std::numeric_limits<int64_t>::max()}, DType::f32, 2), ValueError);
}

TEST(Tensor, ForeignMemoryIsKeptAliveAndIsNeverExclusive) {
  auto owner = std::make_shared<std::vector<double>>(2, 5.0);
  const std::weak_ptr<std::vector<double>> alive = owner;
  {
    const Tensor x = Tensor::over(std::make_shared<Storage>(owner, owner->data(), 16), {2}, DType::f64);
    owner.reset();
    EXPECT_FALSE(alive.expired());
    EXPECT_THAT(x.to_vector<double>(), ElementsAre(5, 5));
    EXPECT_FALSE(x.is_exclusive());
  }
  EXPECT_TRUE(alive.expired());
}

TEST(Tensor, ExclusiveMeansOneHandleAndNoView) {
  Tensor x = Tensor::zeros({2});
  EXPECT_TRUE(x.is_exclusive());
  {
    const Tensor view = x.detach();
    EXPECT_FALSE(x.is_exclusive());
  }
  EXPECT_TRUE(x.is_exclusive());
  const Tensor handle = x;
  EXPECT_FALSE(x.is_exclusive());
}

TEST(RequiresGrad, IsForFloatingLeaves) {
  EXPECT_THAT([] { Tensor::zeros({2}, DType::i64).set_requires_grad(); },
              ThrowsMessage<TypeError>(HasSubstr("i64")));
  Tensor x = Tensor::zeros({2}).set_requires_grad();
  EXPECT_TRUE(x.requires_grad());
  EXPECT_FALSE(x.detach().requires_grad());
  Tensor y = reshape(x, {2, 1});
  EXPECT_TRUE(y.requires_grad());
  for (const bool wanted : {true, false}) {
    EXPECT_THAT([&] { y.set_requires_grad(wanted); },
                ThrowsMessage<RuntimeError>(AllOf(HasSubstr("[reshape]"), HasSubstr("(2, 1)"))));
  }
  x.set_requires_grad(false);
  EXPECT_FALSE(x.requires_grad());
  EXPECT_FALSE(reshape(x, {2, 1}).requires_grad());
}

TEST(RequiresGrad, AskingAgainKeepsTheGradient) {
  Tensor x = Tensor::zeros({2}).set_requires_grad();
  x.set_grad(Tensor::full({2}, 3));
  x.set_requires_grad();
  EXPECT_THAT(x.grad().to_vector<float>(), ElementsAre(3, 3));
}

TEST(RequiresGrad, SetGradChecksWhatItIsGiven) {
  Tensor x = Tensor::zeros({2});
  EXPECT_THROW(x.set_grad({}), RuntimeError);
  EXPECT_THROW(x.register_hook([](const Tensor&) { return Tensor(); }), RuntimeError);
  x.set_requires_grad();
  EXPECT_FALSE(x.grad().defined());
  EXPECT_THAT([&] { x.set_grad(Tensor::zeros({3})); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr("(3,)"), HasSubstr("(2,)"))));
  EXPECT_THROW(x.set_grad(Tensor::zeros({2}, DType::f64)), ValueError);
  x.set_grad(Tensor::zeros({2}));
  x.set_grad({});
  EXPECT_FALSE(x.grad().defined());
}

// A gradient that were part of a tape would keep it alive; one that were the tensor itself, forever.
TEST(RequiresGrad, AGradientIsDetached) {
  Tensor x = Tensor::zeros({2}).set_requires_grad();
  x.set_grad(x);
  EXPECT_FALSE(x.grad().requires_grad());
}

TEST(RequiresGrad, InPlaceChangesNeedGradModeOff) {
  Tensor x = Tensor::zeros({2}).set_requires_grad();
  EXPECT_THAT([&] { x.fill(1); },
              ThrowsMessage<RuntimeError>(AllOf(HasSubstr("[fill]"), HasSubstr("NoGradGuard"))));
  EXPECT_THAT([&] { x.copy_from(Tensor::zeros({2})); },
              ThrowsMessage<RuntimeError>(HasSubstr("[copy_from]")));
  const NoGradGuard no_grad;
  x.fill(1);
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(1, 1));
}

}  // namespace
}  // namespace tapehead
