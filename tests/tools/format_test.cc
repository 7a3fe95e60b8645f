#include "tapehead/tools/format.h"

#include <gtest/gtest.h>

namespace tapehead {
namespace {

TEST(Format, Counts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(-1234567), "-1,234,567");
  EXPECT_EQ(with_thousands("1234.5678"), "1,234.5678");
}

TEST(Format, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(int64_t{5} << 40), "5.0 TiB");
}

TEST(Format, Durations) {
  EXPECT_EQ(format_duration(7.4), "0:07");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(-1), "0:00");
}

TEST(Format, WordsOfAShell) {
  EXPECT_EQ(shell_quote("runs/a-b_1.txt"), "runs/a-b_1.txt");
  EXPECT_EQ(shell_quote("my run"), "'my run'");
  EXPECT_EQ(shell_quote("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_quote(""), "''");
}

}  // namespace
}  // namespace tapehead
