#include "tapehead/models/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Numbered lines of different lengths, so that a line says where it came from.
std::string numbered_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += std::to_string(i) + std::string(static_cast<size_t>(i % 7), '.') + "\n";
  }
  return text;
}

std::vector<int> line_numbers(const std::string& text) {
  std::vector<int> numbers;
  for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
    numbers.push_back(std::stoi(text.substr(begin)));
  }
  return numbers;
}

TEST(ReadText, GivesEveryByte) {
  const std::string path = testing::TempDir() + "text";
  const std::string bytes("a\0b\r\n\xFF", 6);
  write_file_atomically(path, bytes);
  EXPECT_EQ(read_text(path), bytes);
}

TEST(ReadText, AnEmptyFileIsAnErrorThatNamesIt) {
  const std::string path = testing::TempDir() + "empty";
  write_file_atomically(path, "");
  EXPECT_THAT([&] { read_text(path); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr(path), HasSubstr("is empty"))));
}

TEST(ReadText, AMissingFileIsAnErrorThatNamesIt) {
  EXPECT_THAT([&] { read_text("no/such/file"); }, ThrowsMessage<ValueError>(HasSubstr("no/such/file")));
}

TEST(SplitHeldOut, EveryLineIsOnOneSideInTheOrderOfTheText) {
  const std::string text = numbered_lines(20000);
  const TextSplit split = split_held_out(text, 0.05, 1);
  const std::vector<int> training = line_numbers(split.training);
  const std::vector<int> held_out = line_numbers(split.held_out);
  std::vector<int> all;
  std::merge(training.begin(), training.end(), held_out.begin(), held_out.end(), std::back_inserter(all));
  EXPECT_EQ(all, line_numbers(text));
  EXPECT_EQ(split.training.size() + split.held_out.size(), text.size());
}

TEST(SplitHeldOut, HoldsOutTheFractionAndAtMostOneBlockMore) {
  const std::string text = numbered_lines(20000);
  for (const double fraction : {0.001, 0.05, 0.5}) {
    const TextSplit split = split_held_out(text, fraction, 3);
    const double wanted = fraction * static_cast<double>(text.size());
    EXPECT_GE(static_cast<double>(split.held_out.size()), wanted);
    EXPECT_LT(static_cast<double>(split.held_out.size()), wanted + 50 * 12);
  }
}

TEST(SplitHeldOut, BlocksAreFiftyConsecutiveLines) {
  const std::vector<int> held_out = line_numbers(split_held_out(numbered_lines(20000), 0.05, 1).held_out);
  ASSERT_EQ(held_out.size() % 50, 0);
  for (size_t i = 0; i < held_out.size(); ++i) {
    EXPECT_EQ(held_out[i], held_out[i - i % 50] + static_cast<int>(i % 50));
  }
  EXPECT_EQ(held_out[0] % 50, 0);
}

TEST(SplitHeldOut, TheDrawIsTheSameOnEveryMachine) {
  // Drawn once and written down here.
  const std::vector<int> held_out = line_numbers(split_held_out(numbered_lines(200), 0.05, 1).held_out);
  EXPECT_THAT(held_out, testing::ElementsAre(32, 55, 68, 70, 84, 122, 132, 137, 165, 172));
}

TEST(SplitHeldOut, AnotherSeedDrawsOtherBlocks) {
  const std::string text = numbered_lines(20000);
  EXPECT_NE(split_held_out(text, 0.05, 1).held_out, split_held_out(text, 0.05, 2).held_out);
  EXPECT_EQ(split_held_out(text, 0.05, 2).held_out, split_held_out(text, 0.05, 2).held_out);
}

TEST(SplitHeldOut, AShortTextStillTrains) {
  const TextSplit split = split_held_out("one\ntwo\nthree");
  EXPECT_FALSE(split.training.empty());
  EXPECT_FALSE(split.held_out.empty());
}

TEST(SplitHeldOut, ATextThatLeavesNothingToTrainOnIsAnError) {
  for (const char* text : {"", "one line only\n"}) {
    EXPECT_THAT([&] { split_held_out(text); }, ThrowsMessage<ValueError>(HasSubstr("nothing to train on")));
  }
}

TEST(SplitHeldOut, AFractionThatIsNoneIsAnError) {
  for (const double fraction : {0.0, 1.0, -0.1, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT([&] { split_held_out("a\nb\n", fraction); },
                ThrowsMessage<ValueError>(HasSubstr("fraction")));
  }
}

}  // namespace
}  // namespace tapehead
