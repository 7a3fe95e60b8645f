#include "tapehead/core/byte_size.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <string>

#include "tapehead/core/error.h"

namespace tapehead {
namespace {

TEST(ByteSize, IsANumberAndAUnit) {
  EXPECT_EQ(parse_size("0"), 0);
  EXPECT_EQ(parse_size("5000"), 5000);
  EXPECT_EQ(parse_size("7B"), 7);
  EXPECT_EQ(parse_size("1.5GB"), 1'500'000'000);
  EXPECT_EQ(parse_size("64MiB"), 64 << 20);
  int64_t decimal = 1, binary = 1;
  for (const std::string letter : {"k", "M", "G", "T"}) {
    EXPECT_EQ(parse_size("3" + letter + "B"), 3 * (decimal *= 1000)) << letter;
    EXPECT_EQ(parse_size("3" + (letter == "k" ? "K" : letter) + "iB"), 3 * (binary *= 1024)) << letter;
  }
}

TEST(ByteSize, RefusesTheRestByItsText) {
  for (const std::string text :
       {"", "MiB", "-1", "1 MiB", "1mib", "64MiBs", "nan", "inf", "1e30", "4194304TiB"}) {
    EXPECT_THAT([&] { parse_size(text); },
                testing::ThrowsMessage<ValueError>(testing::StartsWith("\"" + text + "\" is not a size")))
        << text;
  }
}

}  // namespace
}  // namespace tapehead
