#include "tapehead/models/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/core/random.h"
#include "tapehead/models/pretokenizer.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::string kGolden = "tests/golden/tokenizer";

// A folder of the test's own, empty at first.
std::string fresh_folder() {
  const std::string folder =
      testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name();
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

std::vector<std::string> pieces_of(std::string_view text) {
  std::vector<std::string> pieces;
  for_each_piece(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
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

Tokenizer small_tokenizer() { return Tokenizer::train(read_file(kGolden + "/paragraph.txt"), 400); }

TEST(Pretokenizer, CutsByGpt2sRule) {
  EXPECT_THAT(
      pieces_of("We've 2 dogs,  they'll bark!\n\nYes"),
      ElementsAre("We", "'ve", " 2", " dogs", ",", " ", " they", "'ll", " bark", "!", "\n", "\n", "Yes"));
}

TEST(Pretokenizer, WhiteSpaceIsUnicodesAndNotPcre2s) {
  // U+180E was white space before Unicode 6.3; the control characters 1C to 1F are to some libraries.
  EXPECT_THAT(pieces_of(" \u180E"), ElementsAre(" \u180E"));
  EXPECT_THAT(pieces_of(" \x1C!"), ElementsAre(" \x1C!"));
  EXPECT_THAT(pieces_of("\u0085\u3000x"), ElementsAre("\u0085", "\u3000", "x"));
}

TEST(Pretokenizer, InvalidUtf8IsPiecesOfOneByteAndSpoilsNothingAround) {
  EXPECT_THAT(pieces_of("ab\xFF\xC3 caf\xC3\xA9\xE2\x82"),
              ElementsAre("ab", "\xFF", "\xC3", " caf\xC3\xA9", "\xE2", "\x82"));
  // A surrogate, an overlong slash, and a character beyond U+10FFFF.
  EXPECT_EQ(pieces_of("\xED\xA0\x80").size(), 3);
  EXPECT_EQ(pieces_of("\xC0\xAF").size(), 2);
  EXPECT_EQ(pieces_of("\xF4\x90\x80\x80").size(), 4);
}

TEST(Pretokenizer, PiecesAreTheTextWithoutGaps) {
  const std::string bytes = random_bytes(1, 10000);
  std::string joined;
  for_each_piece(bytes, [&](std::string_view piece) { joined += piece; });
  EXPECT_EQ(joined, bytes);
}

TEST(Pretokenizer, RunsOfMillionsExhaustNoStack) {
  EXPECT_EQ(pieces_of(std::string(5'000'000, 'a')).size(), 1);
  EXPECT_EQ(pieces_of(std::string(5'000'000, ' ') + "x").size(), 2);
}

TEST(Tokenizer, GivesTheIdsOfHuggingFaceFromItsFiles) {
  const Tokenizer tokenizer = Tokenizer::load(kGolden);
  EXPECT_EQ(tokenizer.vocab_size(), 400);
  EXPECT_EQ(tokenizer.end_of_text(), 0);
  for (const auto& example : nlohmann::json::parse(read_file(kGolden + "/cases.json"))) {
    const std::string text = example["text"];
    const std::vector<int32_t> ids = example["ids"];
    EXPECT_EQ(tokenizer.encode(text), ids) << example["text"];
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
}

TEST(Tokenizer, LearnsTheMergesThatHuggingFaceLearns) {
  const std::string folder = fresh_folder();
  small_tokenizer().save(folder);
  EXPECT_EQ(read_file(folder + "/merges.txt"), read_file(kGolden + "/merges.txt"));
}

TEST(Tokenizer, VocabularyIsTheBytesInGpt2sOrderThenMergesThenEndOfText) {
  const Tokenizer tokenizer = Tokenizer::train("ab ab", 258);
  EXPECT_EQ(tokenizer.vocab_size(), 258);
  // The first and last bytes that stand for themselves, then the first and last that do not.
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{0, 187, 188, 255}),
            "!\xFF" + std::string(1, '\0') + "\xAD");
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{256}), "ab");
  EXPECT_EQ(tokenizer.end_of_text(), 257);
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{257}), "<|endoftext|>");
}

TEST(Tokenizer, AmongEquallyFrequentPairsTheSmallestIdsMergeFirst) {
  EXPECT_EQ(Tokenizer::train("zy cd", 258).decode(std::vector<int32_t>{256}), "cd");
  EXPECT_EQ(Tokenizer::train("zy cd zy", 258).decode(std::vector<int32_t>{256}), "zy");
}

TEST(Tokenizer, RunsOfOneByteMergeFromTheLeft) {
  const Tokenizer tokenizer = Tokenizer::train("aaaa", 259);
  EXPECT_EQ(tokenizer.vocab_size(), 259);
  EXPECT_THAT(tokenizer.encode("aaaa"), ElementsAre(257));
  EXPECT_THAT(tokenizer.encode("aaa"), ElementsAre(256, tokenizer.encode("a")[0]));
}

TEST(Tokenizer, NoTwoTokensAreTheSameBytes) {
  // Runs and repeats are where two merges might make one string.
  Generator random{7};
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (int i = 0; i < 300; ++i) {
      text += "aaabbc "[random.below(7)];
    }
    const Tokenizer tokenizer = Tokenizer::train(text, 1000);
    std::set<std::string> tokens;
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      tokens.insert(tokenizer.decode(std::vector<int32_t>{id}));
    }
    ASSERT_EQ(std::ssize(tokens), tokenizer.vocab_size()) << text;
  }
}

TEST(Tokenizer, EncodingATrainingPieceGivesWhatTrainingMadeOfIt) {
  // Trained until no pair is left, every piece of the text is one token.
  const std::string text = read_file(kGolden + "/paragraph.txt");
  const Tokenizer tokenizer = Tokenizer::train(text, 100000);
  EXPECT_LT(tokenizer.vocab_size(), 100000);
  EXPECT_EQ(tokenizer.encode(text).size(), pieces_of(text).size());
}

TEST(Tokenizer, ATextWithoutPairsGivesTheBytesAlone) {
  EXPECT_EQ(Tokenizer::train("", 300).vocab_size(), 257);
  EXPECT_EQ(Tokenizer::train("\xFF\xFF\xFF", 300).vocab_size(), 257);
  EXPECT_EQ(Tokenizer::train("abc", 257).vocab_size(), 257);
}

TEST(Tokenizer, ProgressCountsEveryMerge) {
  std::vector<std::pair<int64_t, int64_t>> told;
  Tokenizer::train("abc", 300, [&](int64_t done, int64_t limit) { told.emplace_back(done, limit); });
  EXPECT_THAT(told, ElementsAre(std::pair(1, 43), std::pair(2, 43)));
}

TEST(Tokenizer, AVocabularyTooSmallForTheBytesIsAnError) {
  for (const int64_t size : {int64_t{256}, int64_t{0}, int64_t{-1}}) {
    EXPECT_THAT([&] { Tokenizer::train("text", size); },
                ThrowsMessage<ValueError>(
                    AllOf(HasSubstr("[tokenizer]"), HasSubstr(std::to_string(size)), HasSubstr("257"))));
  }
  EXPECT_THROW(Tokenizer::train("text", int64_t{1} << 31), ValueError);
}

TEST(Tokenizer, DecodingInvertsEncodingForAnyBytes) {
  const Tokenizer tokenizer = small_tokenizer();
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::string bytes = random_bytes(seed, static_cast<int64_t>(seed));
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(bytes)), bytes) << seed;
  }
  std::string pairs;
  for (int i = 0; i < 65536; ++i) {
    pairs += {static_cast<char>(i >> 8), static_cast<char>(i)};
  }
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(pairs)), pairs);
}

TEST(Tokenizer, PiecesSeenBeforeGetTheSameTokensAfterTheMemoryOfThemWasDropped) {
  // More distinct pieces than are remembered, twice over.
  const Tokenizer tokenizer = small_tokenizer();
  std::string text;
  for (int i = 0; i < 150'000; ++i) {
    text += " " + std::to_string(i);
  }
  const std::vector<int32_t> once = tokenizer.encode(text);
  const std::vector<int32_t> twice = tokenizer.encode(text + text);
  ASSERT_EQ(twice.size(), 2 * once.size());
  EXPECT_TRUE(std::equal(once.begin(), once.end(), twice.begin()));
  EXPECT_TRUE(std::equal(once.begin(), once.end(), twice.begin() + std::ssize(once)));
}

TEST(Tokenizer, AWordOfMillionsOfBytesTakesNoQuadraticTime) {
  // Quadratic would be hours.
  std::string word;
  Generator random{3};
  while (word.size() < 500'000) {
    word += "clockevry"[random.below(9)];
  }
  const Tokenizer tokenizer = Tokenizer::train(word, 600);
  EXPECT_EQ(tokenizer.vocab_size(), 600);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(word)), word);
}

TEST(Tokenizer, EndOfTextWrittenInATextIsOnlyText) {
  const Tokenizer tokenizer = small_tokenizer();
  const std::vector<int32_t> ids = tokenizer.encode("a<|endoftext|>b");
  EXPECT_THAT(ids, testing::Not(testing::Contains(tokenizer.end_of_text())));
  EXPECT_EQ(tokenizer.decode(ids), "a<|endoftext|>b");
}

TEST(Tokenizer, AnIdOutsideTheVocabularyIsAnError) {
  const Tokenizer tokenizer = small_tokenizer();
  for (const int32_t id : {-1, 400}) {
    EXPECT_THAT(
        [&] {
          tokenizer.decode(std::vector<int32_t>{1, id});
        },
        ThrowsMessage<ValueError>(
            AllOf(HasSubstr("[tokenizer]"), HasSubstr(std::to_string(id)), HasSubstr("of 400"))));
  }
}

TEST(Tokenizer, ThreadsMayShareOne) {
  const Tokenizer tokenizer = small_tokenizer();
  const std::string text = read_file(kGolden + "/paragraph.txt");
  const std::vector<int32_t> expected = tokenizer.encode(text);
  std::vector<std::vector<int32_t>> ids(4);
  std::vector<std::thread> threads;
  for (auto& mine : ids) {
    threads.emplace_back([&] { mine = tokenizer.encode(text); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(ids, testing::Each(expected));
}

// Saved files, to be spoilt in one way each.
class TokenizerFiles : public testing::Test {
 protected:
  TokenizerFiles() {
    small_tokenizer().save(folder_);
    saved_ = nlohmann::json::parse(read_file(vocab_));
  }

  void expect_load_error(const std::vector<std::string>& parts) {
    EXPECT_THAT([&] { Tokenizer::load(folder_); }, ThrowsMessage<ValueError>(HasSubstr("[tokenizer]")));
    for (const std::string& part : parts) {
      EXPECT_THAT([&] { Tokenizer::load(folder_); }, ThrowsMessage<ValueError>(HasSubstr(part)));
    }
  }

  // Each call spoils the vocabulary as it was saved.
  void write_vocab(const std::function<void(nlohmann::json&)>& spoil) {
    nlohmann::json vocab = saved_;
    spoil(vocab);
    write_file_atomically(vocab_, vocab.dump());
  }

  const std::string folder_ = fresh_folder() + "/made/by/save";
  const std::string vocab_ = folder_ + "/vocab.json";
  const std::string merges_ = folder_ + "/merges.txt";

 private:
  nlohmann::json saved_;
};

TEST_F(TokenizerFiles, LoadGivesWhatSaveWrote) {
  const Tokenizer saved = small_tokenizer();
  const Tokenizer loaded = Tokenizer::load(folder_);
  const std::string text = read_file(kGolden + "/cases.json") + random_bytes(5, 1000);
  EXPECT_EQ(loaded.encode(text), saved.encode(text));
  EXPECT_EQ(loaded.vocab_size(), saved.vocab_size());
  EXPECT_EQ(loaded.end_of_text(), saved.end_of_text());
}

TEST_F(TokenizerFiles, OpenAisNamesAreAccepted) {
  std::filesystem::rename(vocab_, folder_ + "/encoder.json");
  std::filesystem::rename(merges_, folder_ + "/vocab.bpe");
  EXPECT_EQ(Tokenizer::load(folder_).vocab_size(), 400);
}

TEST_F(TokenizerFiles, AMergeThatBeginsWithAHashIsNoComment) {
  Tokenizer::train("## ##", 258).save(folder_);
  EXPECT_EQ(Tokenizer::load(folder_).encode("##").size(), 1);
  // Without a version line, and with the line ends of another system.
  write_file_atomically(merges_, "# #\r\n");
  EXPECT_EQ(Tokenizer::load(folder_).encode("##").size(), 1);
}

TEST_F(TokenizerFiles, LoadSaysWhichFileIsMissing) {
  std::filesystem::remove(merges_);
  expect_load_error({folder_, "merges.txt"});
}

TEST_F(TokenizerFiles, LoadSaysWhereTheVocabularyIsNoJson) {
  write_file_atomically(vocab_, "{\"a\": 0,\n\"b\" 1}");
  expect_load_error({vocab_, "line 2"});
  write_file_atomically(vocab_, "[1, 2]");
  expect_load_error({vocab_, "array"});
}

TEST_F(TokenizerFiles, LoadRefusesIdsThatAreNoEnumeration) {
  write_vocab([](auto& vocab) { vocab["the"] = 400; });
  expect_load_error({vocab_, "400"});
  write_vocab([](auto& vocab) { vocab["b"] = vocab["a"]; });
  expect_load_error({vocab_, "same id"});
  write_vocab([](auto& vocab) { vocab["a"] = "one"; });
  expect_load_error({vocab_, "\"a\"", "\"one\""});
}

TEST_F(TokenizerFiles, LoadRefusesAVocabularyThatCannotEncodeEveryByte) {
  write_vocab([](auto& vocab) { vocab["added"] = vocab["a"], vocab.erase("a"); });
  expect_load_error({vocab_, "byte 97"});
}

TEST_F(TokenizerFiles, LoadRefusesTokensThatAreNoBytes) {
  write_vocab([](auto& vocab) { vocab["\u4000a"] = 400; });
  expect_load_error({vocab_, "\u4000a"});
}

TEST_F(TokenizerFiles, LoadRefusesAVocabularyWithoutEndOfText) {
  write_vocab([](auto& vocab) { vocab["</s>"] = vocab["<|endoftext|>"], vocab.erase("<|endoftext|>"); });
  expect_load_error({vocab_, "<|endoftext|>"});
}

TEST_F(TokenizerFiles, LoadSaysWhichLineOfTheMergesIsWrong) {
  const std::string good = read_file(merges_);
  for (const char* bad : {"abc", "a b c", "a ", " a"}) {
    write_file_atomically(merges_, good + bad + "\n");
    expect_load_error({merges_, "line 145", bad});
  }
  write_file_atomically(merges_, good + "q q\n");
  expect_load_error({"line 145", "\"qq\" is no token"});
  write_file_atomically(merges_, good + "q \u65e5\n");
  expect_load_error({"line 145", "\"\u65e5\" is no token"});
  write_file_atomically(merges_, good + good.substr(good.find('\n') + 1));
  expect_load_error({"line 145", "line 2"});
}

TEST_F(TokenizerFiles, SaveReportsWhatTheMachineRefuses) {
  EXPECT_THAT([&] { small_tokenizer().save(vocab_ + "/below-a-file"); },
              ThrowsMessage<SystemError>(
                  AllOf(HasSubstr("make the folder " + vocab_), HasSubstr("Not a directory"))));
}

}  // namespace
}  // namespace tapehead
