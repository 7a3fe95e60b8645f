#include "tapehead/models/pretokenizer.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>
#include <string>
#include <vector>

#include "tapehead/core/random.h"
#include "tapehead/models/utf8.h"

namespace tapehead {
namespace {

using ::testing::ElementsAre;

constexpr SplittingRule kRules[] = {SplittingRule::gpt2, SplittingRule::smollm, SplittingRule::llama3,
                                    SplittingRule::qwen2};

std::vector<std::string> pieces_of(std::string_view text, SplittingRule rule = SplittingRule::gpt2) {
  std::vector<std::string> pieces;
  for_each_piece(text, rule, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

std::string random_bytes(uint64_t seed, int64_t count) {
  Generator random{seed};
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) {
    bytes += static_cast<char>(random.below(256));
  }
  return bytes;
}

// The rules as regular expressions, by PCRE2, whose \s and case folding are Unicode's with these options but
// for U+180E, which the texts here do without.
class Pcre2 {
 public:
  explicit Pcre2(SplittingRule rule) {
    const std::string expression = expression_of(rule);
    int error = 0;
    PCRE2_SIZE where = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.c_str()), PCRE2_ZERO_TERMINATED,
                              PCRE2_UTF | PCRE2_UCP, &error, &where, nullptr));
    EXPECT_NE(code_, nullptr) << "error " << error << " at " << where;
    match_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  }

  std::vector<std::string> pieces_of(const std::string& text) {
    std::vector<std::string> pieces;
    for (size_t begin = 0; begin < text.size();) {
      EXPECT_GT(match(text, begin), 0);
      const PCRE2_SIZE* const found = pcre2_get_ovector_pointer(match_.get());
      EXPECT_EQ(found[0], begin);
      pieces.push_back(text.substr(begin, found[1] - begin));
      begin = found[1];
    }
    return pieces;
  }

  bool is_utf8(const std::string& text) {
    const int found = match(text, 0);
    return !(PCRE2_ERROR_UTF8_ERR21 <= found && found <= PCRE2_ERROR_UTF8_ERR1);
  }

 private:
  static std::string expression_of(SplittingRule rule) {
    const std::string gpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
    const std::string llama3 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
                               R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    switch (rule) {
      case SplittingRule::gpt2: return gpt2;
      // Its two steps in one: a digit is cut out first, so a run of white space before it is whole.
      case SplittingRule::smollm:
        return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+)";
      case SplittingRule::llama3: return llama3;
      case SplittingRule::qwen2: return std::string(llama3).replace(llama3.find("{1,3}"), 5, "");
    }
    return "";
  }

  int match(const std::string& text, size_t begin) {
    return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin, 0,
                       match_.get(), nullptr);
  }

  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> match_;
};

TEST(Pretokenizer, CutsByGpt2sRule) {
  EXPECT_THAT(
      pieces_of("We've 2 dogs,  they'll bark!\n\nYes"),
      ElementsAre("We", "'ve", " 2", " dogs", ",", " ", " they", "'ll", " bark", "!", "\n", "\n", "Yes"));
}

TEST(Pretokenizer, CutsByLlama3sRule) {
  EXPECT_THAT(pieces_of("WE'VE 1234 (dogs),  they\r\n bark!\n\nYes", SplittingRule::llama3),
              ElementsAre("WE", "'VE", " ", "123", "4", " (", "dogs", "),", " ", " they", "\r\n", " bark",
                          "!\n\n", "Yes"));
  EXPECT_THAT(pieces_of("\tab  12", SplittingRule::qwen2), ElementsAre("\tab", " ", " ", "1", "2"));
}

TEST(Pretokenizer, CutsBySmolLMsRule) {
  EXPECT_THAT(pieces_of("in  1984's 12 \u00bd", SplittingRule::smollm),
              ElementsAre("in", "  ", "1", "9", "8", "4", "'s", " ", "1", "2", " ", "\u00bd"));
}

TEST(Pretokenizer, CutsAsPcre2DoesByTheRegularExpressions) {
  // Characters of every class, those that the rules name above all.
  const std::vector<std::string> characters = {" ",      " ",          "\n",     "\r",
                                               "\t",     "\v",         "\u0085", "\u00a0",
                                               "\u2028", "\u3000",     "'",      "'",
                                               "s",      "S",          "\u017f", "t",
                                               "r",      "e",          "E",      "v",
                                               "m",      "l",          "L",      "d",
                                               "D",      "k",          "\u212a", "\u00e9",
                                               "\u65e5", "\U00010330", "1",      "2",
                                               "\u0664", "\u00bd",     "\u2167", "!",
                                               ".",      "_",          "\u0301", "\u200b",
                                               "\ue000", "\U0001f600", "\x1c",   std::string(1, '\0')};
  for (const SplittingRule rule : kRules) {
    Pcre2 oracle(rule);
    Generator random{17};
    for (int round = 0; round < 20000; ++round) {
      std::string text;
      for (uint64_t i = random.below(12); i < 12; ++i) {
        text += characters[random.below(characters.size())];
      }
      ASSERT_EQ(pieces_of(text, rule), oracle.pieces_of(text))
          << "rule " << static_cast<int>(rule) << ": " << text;
    }
  }
}

TEST(Pretokenizer, WhiteSpaceIsUnicodesAndNotPcre2s) {
  // U+180E was white space before Unicode 6.3; the control characters 1C to 1F are to some libraries.
  EXPECT_THAT(pieces_of(" \u180E"), ElementsAre(" \u180E"));
  EXPECT_THAT(pieces_of(" \x1C!"), ElementsAre(" \x1C!"));
  EXPECT_THAT(pieces_of("\u0085\u3000x"), ElementsAre("\u0085", "\u3000", "x"));
}

TEST(Pretokenizer, LettersAreUnicode16s) {
  // Garay came with 16.0: a letter and a digit. What is still unassigned is neither.
  EXPECT_THAT(pieces_of("a\U00010D4A1\U00010D40.\U00010D90"),
              ElementsAre("a\U00010D4A", "1\U00010D40", ".\U00010D90"));
  // A digit of 17.0, which SmolLM's first step alone knows.
  EXPECT_THAT(pieces_of(".\U00011DE0"), ElementsAre(".\U00011DE0"));
  EXPECT_THAT(pieces_of(".\U00011DE0", SplittingRule::smollm), ElementsAre(".", "\U00011DE0"));
}

TEST(Pretokenizer, InvalidUtf8IsPiecesOfOneByteAndSpoilsNothingAround) {
  EXPECT_THAT(pieces_of("ab\xFF\xC3 caf\xC3\xA9\xE2\x82"),
              ElementsAre("ab", "\xFF", "\xC3", " caf\xC3\xA9", "\xE2", "\x82"));
  // A surrogate, an overlong slash, and a character beyond U+10FFFF.
  EXPECT_EQ(pieces_of("\xED\xA0\x80").size(), 3);
  EXPECT_EQ(pieces_of("\xC0\xAF").size(), 2);
  EXPECT_EQ(pieces_of("\xF4\x90\x80\x80").size(), 4);
  EXPECT_THAT(pieces_of("a \xFF!\n\xFF\n", SplittingRule::llama3),
              ElementsAre("a", " ", "\xFF", "!\n", "\xFF", "\n"));
}

TEST(Pretokenizer, WhatIsValidUtf8IsWhatPcre2SaysIsValid) {
  // Bytes at which the rules of UTF-8 change.
  const std::string bytes =
      "\x20\x7F\x80\x8F\x90\x9F\xA0\xBF\xC1\xC2\xDF\xE0\xE1\xEC\xED\xEE\xEF\xF0\xF1\xF3\xF4\xF5\xFF";
  Pcre2 oracle(SplittingRule::gpt2);
  Generator random{4};
  for (int round = 0; round < 200'000; ++round) {
    std::string character;
    for (uint64_t i = random.below(4); i < 4; ++i) {
      character += bytes[random.below(bytes.size())];
    }
    const Utf8Character first = first_character(character);
    for (size_t size = 1; size <= character.size(); ++size) {
      // A prefix is valid where the first character ends, and nowhere before.
      if (size <= first.size || first.size == 0) {
        ASSERT_EQ(oracle.is_utf8(character.substr(0, size)), size == first.size)
            << testing::PrintToString(character);
      }
    }
  }
}

TEST(Pretokenizer, PiecesAreTheTextWithoutGaps) {
  const std::string bytes = random_bytes(1, 10000);
  for (const SplittingRule rule : kRules) {
    std::string joined;
    for_each_piece(bytes, rule, [&](std::string_view piece) { joined += piece; });
    EXPECT_EQ(joined, bytes);
  }
}

TEST(Pretokenizer, RunsOfMillionsExhaustNoStackAndTakeNoQuadraticTime) {
  for (const SplittingRule rule : kRules) {
    EXPECT_EQ(pieces_of(std::string(5'000'000, 'a'), rule).size(), 1);
    EXPECT_EQ(pieces_of(std::string(5'000'000, ' ') + "x", rule).size(), 2);
    EXPECT_EQ(pieces_of(std::string(5'000'000, '!') + "\n", rule).size(),
              rule == SplittingRule::gpt2 || rule == SplittingRule::smollm ? 2 : 1);
  }
}

TEST(Utf8, WholeCharactersEndWhereTheNextHasOnlyBegun) {
  const std::string text = "a\u00e9\u20ac\U0001f600";
  const size_t ends[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
  for (size_t size = 0; size <= text.size(); ++size) {
    EXPECT_EQ(size_of_whole_characters(std::string_view(text).substr(0, size)), ends[size]) << size;
  }
  // No further byte makes these a character.
  for (const char* invalid : {"a\xFF", "\x80\x80\x80\x80", "\xC3\x28", "\xF5"}) {
    EXPECT_EQ(size_of_whole_characters(invalid), std::string_view(invalid).size());
  }
}

}  // namespace
}  // namespace tapehead
