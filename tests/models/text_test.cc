#include "tapehead/models/text.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/core/random.h"
#include "tapehead/models/pretokenizer.h"

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

// Both sides of a split, each as one text.
struct Sides {
  std::string training, held_out;
};

Sides split(const std::string& text, double fraction = 0.05, uint64_t seed = 0) {
  Sides sides;
  for (const TextBlock& block : split_held_out(text, fraction, seed)) {
    (block.held_out ? sides.held_out : sides.training) +=
        text.substr(static_cast<size_t>(block.begin), static_cast<size_t>(block.end - block.begin));
  }
  return sides;
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
  const Sides sides = split(text, 0.05, 1);
  const std::vector<int> training = line_numbers(sides.training);
  const std::vector<int> held_out = line_numbers(sides.held_out);
  std::vector<int> all;
  std::merge(training.begin(), training.end(), held_out.begin(), held_out.end(), std::back_inserter(all));
  EXPECT_EQ(all, line_numbers(text));
  EXPECT_EQ(sides.training.size() + sides.held_out.size(), text.size());
}

TEST(SplitHeldOut, HoldsOutTheFractionAndAtMostOneBlockMore) {
  const std::string text = numbered_lines(20000);
  for (const double fraction : {0.001, 0.05, 0.5}) {
    const Sides sides = split(text, fraction, 3);
    const double wanted = fraction * static_cast<double>(text.size());
    EXPECT_GE(static_cast<double>(sides.held_out.size()), wanted);
    EXPECT_LT(static_cast<double>(sides.held_out.size()), wanted + 50 * 12);
  }
}

TEST(SplitHeldOut, BlocksAreFiftyConsecutiveLines) {
  const std::vector<int> held_out = line_numbers(split(numbered_lines(20000), 0.05, 1).held_out);
  ASSERT_EQ(held_out.size() % 50, 0);
  for (size_t i = 0; i < held_out.size(); ++i) {
    EXPECT_EQ(held_out[i], held_out[i - i % 50] + static_cast<int>(i % 50));
  }
  EXPECT_EQ(held_out[0] % 50, 0);
}

TEST(SplitHeldOut, TheDrawIsTheSameOnEveryMachine) {
  // Drawn once and written down here.
  const std::vector<int> held_out = line_numbers(split(numbered_lines(200), 0.05, 1).held_out);
  EXPECT_THAT(held_out, testing::ElementsAre(32, 55, 68, 70, 84, 122, 132, 137, 165, 172));
}

TEST(SplitHeldOut, AnotherSeedDrawsOtherBlocks) {
  const std::string text = numbered_lines(20000);
  EXPECT_NE(split(text, 0.05, 1).held_out, split(text, 0.05, 2).held_out);
  EXPECT_EQ(split(text, 0.05, 2).held_out, split(text, 0.05, 2).held_out);
}

TEST(SplitHeldOut, AShortTextStillTrains) {
  const Sides sides = split("one\ntwo\nthree");
  EXPECT_FALSE(sides.training.empty());
  EXPECT_FALSE(sides.held_out.empty());
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

TEST(SplitHeldOut, TellsHowFarItIsTwice) {
  const std::string text(5 << 20, '\n');
  std::vector<int64_t> told;
  split_held_out(text, 0.05, 0, [&](int64_t end) { told.push_back(end); });
  EXPECT_THAT(told, testing::ElementsAre(4 << 20, 5 << 20,
                                         testing::AllOf(testing::Ge(4 << 20), testing::Le((4 << 20) + 50))));
}

// ---- Cutting

std::vector<std::string> pieces(std::string_view text, SplittingRule rule) {
  std::vector<std::string> list;
  for_each_piece(text, rule, [&](std::string_view piece) { list.emplace_back(piece); });
  return list;
}

// A cut between two white spaces would give other tokens, and so would one before white
// space of three bytes that has not arrived in full.
TEST(LastSafeCut, LeavesThePiecesAsTheyAreWhateverFollows) {
  const std::vector<std::string> words = {
      "a",      "B",      "'s",     "'",  "7",      "12",     "\u00e9", "\u0436",   "\u4e2d",
      "\u3002", ".",      "!?",     " ",  " ",      "  ",     "\n",     "\n",       "\r\n",
      "\t",     "\u00a0", "_",      "\v", "\u3000", "\u2028", "\u2003", "\u0301",   "\u200b",
      "\u205f", "\u1680", "\u0085", "<",  "\xff",   "\xc2",   "\1",     "\xe2\x80", "\U0001f600"};
  constexpr SplittingRule kRules[] = {SplittingRule::gpt2, SplittingRule::smollm, SplittingRule::llama3,
                                      SplittingRule::qwen2};
  Generator random{.seed = 4};
  int cuts = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string text;
    for (uint64_t n = 1 + random.below(12); n > 0; --n) text += words[random.below(words.size())];
    const SplittingRule rule = kRules[i % 4];
    const std::vector<std::string> whole = pieces(text, rule);
    for (size_t size = 0; size <= text.size(); ++size) {
      const auto cut = static_cast<size_t>(last_safe_cut(text.substr(0, size)));
      ASSERT_TRUE(cut == 0 || cut < size);
      std::vector<std::string> parts = pieces(text.substr(0, cut), rule);
      for (const std::string& piece : pieces(text.substr(cut), rule)) parts.push_back(piece);
      ASSERT_EQ(parts, whole) << testing::PrintToString(text) << " cut at " << cut << ", rule " << i % 4;
      cuts += cut > 0;
    }
  }
  EXPECT_GT(cuts, 3000);
}

TEST(LastSafeCut, IsTheLastBehindAPlace) {
  EXPECT_EQ(last_safe_cut("one two three"), 7);
  EXPECT_EQ(last_safe_cut("one two three", 6), 7);
  EXPECT_EQ(last_safe_cut("one two three", 7), 0);
  EXPECT_EQ(last_safe_cut("one two "), 3);  // what follows is not known
  EXPECT_EQ(last_safe_cut("one\ntwo\n"), 4);
  EXPECT_EQ(last_safe_cut("one  two\n\nthree \n four"), 0);
  EXPECT_EQ(last_safe_cut("\u4e2d\u3002\n\u6587"), 7);
  for (const char* text : {"", "a", " ", " a", "a ", "\n", "\na", "a\n"})
    EXPECT_EQ(last_safe_cut(text), 0) << text;
}

}  // namespace
}  // namespace tapehead
