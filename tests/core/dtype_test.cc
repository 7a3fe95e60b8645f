#include "tapehead/core/dtype.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>

#include "tapehead/core/device.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr DType kAll[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32};

TEST(DType, NamesComeBack) {
  for (const DType t : kAll) {
    EXPECT_EQ(parse_dtype(name(t)), t);
    EXPECT_EQ(fmt::format("{}", t), name(t));
  }
  EXPECT_THAT([] { parse_dtype("f8"); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr("\"f8\""), HasSubstr("bf16"))));
}

TEST(DType, VisitingGivesTheTypeOfThatSize) {
  for (const DType t : kAll) {
    visit_dtype(t, [&]<class T>(std::type_identity<T>) {
      EXPECT_EQ(dtype_of<T>(), t);
      EXPECT_EQ(static_cast<int64_t>(sizeof(T)), size_of(t));
      EXPECT_EQ(is_half(t), (!std::is_same_v<wide_t<T>, T>));
    });
  }
}

TEST(DType, VisitorsRefuseTheOtherKindAndNameTheOp) {
  const auto nothing = [](auto) {};
  for (const DType t : kAll) {
    if (is_floating(t)) {
      EXPECT_NO_THROW(visit_floating(t, "op", nothing));
      EXPECT_THAT([&] { visit_index(t, "op", nothing); },
                  ThrowsMessage<TypeError>(AllOf(HasSubstr("[op]"), HasSubstr(std::string(name(t))))));
    } else {
      EXPECT_NO_THROW(visit_index(t, "op", nothing));
      EXPECT_THAT([&] { visit_floating(t, "op", nothing); },
                  ThrowsMessage<TypeError>(AllOf(HasSubstr("[op]"), HasSubstr(std::string(name(t))))));
    }
  }
}

TEST(DType, EpsilonIsTheStepAboveOne) {
  EXPECT_EQ(epsilon(DType::f64), std::numeric_limits<double>::epsilon());
  EXPECT_EQ(epsilon(DType::f32), std::numeric_limits<float>::epsilon());
  const auto step = []<class T>(T one) {
    T next = one;
    ++next.bits;
    return static_cast<double>(static_cast<float>(next)) - 1;
  };
  EXPECT_EQ(epsilon(DType::f16), step(f16(1.0f)));
  EXPECT_EQ(epsilon(DType::bf16), step(bf16(1.0f)));
  EXPECT_THROW(epsilon(DType::i32), TypeError);
}

TEST(Device, NamesComeBack) {
  for (const Device d : {Device{Device::cpu}, Device{Device::cuda}}) EXPECT_EQ(parse_device(name(d)), d);
  EXPECT_THAT([] { parse_device("tpu"); }, ThrowsMessage<ValueError>(HasSubstr("\"tpu\"")));
}

}  // namespace
}  // namespace tapehead
