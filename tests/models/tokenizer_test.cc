#include "tapehead/models/tokenizer.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/core/random.h"
#include "tapehead/models/normalizer.h"
#include "tapehead/models/pretokenizer.h"
#include "tapehead/models/stream_decoder.h"
#include "tapehead/models/utf8.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::string kGolden = "tests/golden/tokenizer";

std::string random_bytes(uint64_t seed, int64_t count) {
  Generator random{seed};
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) {
    bytes += static_cast<char>(random.below(256));
  }
  return bytes;
}

Tokenizer small_tokenizer() { return Tokenizer::train(read_file(kGolden + "/paragraph.txt"), 400); }

nlohmann::json golden_cases(const std::string& kind) {
  return nlohmann::json::parse(read_file(kGolden + kind + "/cases.json"));
}

// By the kind of their splitting rule; "" is GPT-2's, in two files.
const std::string kKinds[] = {"", "/smollm", "/llama3", "/qwen2"};

TEST(Tokenizer, GivesTheIdsOfHuggingFaceFromItsFiles) {
  for (const std::string& kind : kKinds) {
    SCOPED_TRACE(kind);
    const Tokenizer tokenizer = Tokenizer::load(kGolden + kind);
    for (const auto& example : golden_cases(kind)) {
      const std::string text = example["text"];
      const std::vector<int32_t> ids = example["ids"];
      const std::vector<int32_t> recognized = example.value("recognized", ids);
      EXPECT_EQ(tokenizer.encode(text), ids) << example["text"];
      EXPECT_EQ(tokenizer.encode(text, SpecialTokens::recognized), recognized) << example["text"];
      const std::string decoded = kind == "/qwen2" ? normalize_nfc(text) : text;
      EXPECT_EQ(tokenizer.decode(ids), decoded);
      EXPECT_EQ(tokenizer.decode(recognized), decoded);
    }
  }
}

TEST(Tokenizer, KnowsWhereTextsBeginAndEnd) {
  EXPECT_EQ(Tokenizer::load(kGolden).vocab_size(), 400);
  EXPECT_EQ(Tokenizer::load(kGolden).end_of_text(), 0);
  EXPECT_EQ(Tokenizer::load(kGolden).beginning_of_text(), std::nullopt);
  const Tokenizer llama3 = Tokenizer::load(kGolden + "/llama3");
  EXPECT_EQ(llama3.decode(std::vector{llama3.end_of_text()}), "<|end_of_text|>");
  EXPECT_EQ(llama3.decode(std::vector{llama3.beginning_of_text().value()}), "<|begin_of_text|>");
  const Tokenizer qwen2 = Tokenizer::load(kGolden + "/qwen2");
  EXPECT_EQ(qwen2.decode(std::vector{qwen2.end_of_text()}), "<|endoftext|>");
}

TEST(Tokenizer, TextsBetweenAddedTokensMayBeAnyBytes) {
  const Tokenizer tokenizer = Tokenizer::load(kGolden + "/qwen2");
  const std::string text = "\xFF<|im_end|>\xE2\x82<tool_call>\xCC\x81<|im_start|>";
  const std::vector<int32_t> ids = tokenizer.encode(text, SpecialTokens::recognized);
  EXPECT_EQ(tokenizer.decode(ids), text);
  EXPECT_EQ(ids.size(), 1 + 1 + 2 + 1 + 2 + 1);
}

TEST(Tokenizer, OneEncoderForManyTextsGivesEachItsIds) {
  const Tokenizer tokenizer = Tokenizer::load(kGolden + "/llama3");
  Tokenizer::Encoder encoder(tokenizer, SpecialTokens::recognized);
  std::vector<int32_t> together, apart;
  for (const auto& example : golden_cases("/llama3")) {
    const std::string text = example["text"];
    encoder.encode(text, &together);
    const std::vector<int32_t> ids = tokenizer.encode(text, SpecialTokens::recognized);
    apart.insert(apart.end(), ids.begin(), ids.end());
  }
  EXPECT_EQ(together, apart);
}

TEST(Tokenizer, AStreamOfTokensGivesWholeCharacters) {
  const Tokenizer tokenizer = Tokenizer::load(kGolden);
  for (const auto& example : golden_cases("")) {
    StreamDecoder decoder(tokenizer);
    std::string text;
    for (const int32_t token : example["ids"].get<std::vector<int32_t>>()) {
      const std::string part = decoder.add(token);
      for (std::string_view rest = part; !rest.empty(); rest.remove_prefix(first_character(rest).size)) {
        ASSERT_GT(first_character(rest).size, 0) << testing::PrintToString(part);
      }
      text += part;
    }
    EXPECT_EQ(text, example["text"]);
    EXPECT_EQ(decoder.finish(), "");
  }
  StreamDecoder decoder(tokenizer);
  for (const int32_t token : tokenizer.encode("\xE2\x82")) {
    EXPECT_EQ(decoder.add(token), "");
  }
  EXPECT_EQ(decoder.finish(), "\xE2\x82");
}

TEST(Tokenizer, NormalFormCComposesAndLeavesInvalidBytesAlone) {
  EXPECT_EQ(normalize_nfc("plain caf\u00e9"), "plain caf\u00e9");
  EXPECT_EQ(normalize_nfc("cafe\u0301s, e\u0301"), "caf\u00e9s, \u00e9");
  EXPECT_EQ(normalize_nfc("\u0301a\u0323\u0308\u212b\u1112\u1161\u11ab"), "\u0301\u1ea1\u0308\u00c5\ud55c");
  EXPECT_EQ(normalize_nfc("\u00c5\u0301"), "\u01fa");
  // U+1CF8 came with Unicode 7.0, U+1DF6 with 10.0: a nukta moves before marks that are known.
  EXPECT_EQ(normalize_nfc("\u0915\u1cf8\u093c"), "\u0915\u093c\u1cf8");
  EXPECT_EQ(normalize_nfc("\u0915\u1df6\u093c"), "\u0915\u1df6\u093c");
  EXPECT_EQ(normalize_nfc("n\u032f\u0341"), "\u0144\u032f");
  EXPECT_EQ(normalize_nfc("e\xFF\u0301"), "e\xFF\u0301");
  EXPECT_EQ(normalize_nfc("\xCC\xCC\x81x\xE2\x82"), "\xCC\xCC\x81x\xE2\x82");
}

TEST(Tokenizer, LearnsTheMergesThatHuggingFaceLearns) {
  const std::string folder = testing::TempDir() + "learned";
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
  size_t pieces = 0;
  for_each_piece(text, SplittingRule::gpt2, [&](std::string_view) { ++pieces; });
  EXPECT_EQ(tokenizer.encode(text).size(), pieces);
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

TEST(Tokenizer, ARunOfOneLetterTakesNoQuadraticTime) {
  const Tokenizer tokenizer = Tokenizer::train(std::string(1024, 'a'), 300);
  EXPECT_EQ(tokenizer.encode(std::string(1 << 20, 'a')).size(), (1 << 20) / 1024);
}

TEST(Tokenizer, EndOfTextWrittenInATextIsOnlyTextUnlessRecognized) {
  const Tokenizer tokenizer = small_tokenizer();
  const std::vector<int32_t> ids = tokenizer.encode("a<|endoftext|>b");
  EXPECT_THAT(ids, testing::Not(testing::Contains(tokenizer.end_of_text())));
  EXPECT_EQ(tokenizer.decode(ids), "a<|endoftext|>b");
  const int32_t a = tokenizer.encode("a")[0];
  EXPECT_THAT(tokenizer.encode("a<|endoftext|>a", SpecialTokens::recognized),
              ElementsAre(a, tokenizer.end_of_text(), a));
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

}  // namespace
}  // namespace tapehead
