#include "tapehead/models/token_file.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tapehead/core/error.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class TokenFileTest : public testing::Test {
 protected:
  void expect_open_error(const std::string& part) {
    EXPECT_THAT([&] { TokenFile::open(path_); },
                ThrowsMessage<ValueError>(AllOf(HasSubstr(path_), HasSubstr(part))));
  }

  // The file with one byte of it changed.
  void spoil(size_t at, char byte) {
    std::string bytes = read_file(path_);
    bytes.at(at) = byte;
    write_file_atomically(path_, bytes);
  }

  const std::string path_ =
      testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() + ".tokens";
};

std::vector<int64_t> all_tokens(const TokenFile& file) {
  std::vector<int64_t> tokens(static_cast<size_t>(file.size()));
  file.copy(0, file.size(), tokens.data());
  return tokens;
}

TEST_F(TokenFileTest, GivesBackWhatWasWrittenOnBothSidesOfTheWidths) {
  for (const int64_t vocab_size : {65536, 65537}) {
    // More than one part of the writer's, and the largest tokens there are.
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < 200'000; ++i) {
      tokens.push_back(static_cast<int32_t>(vocab_size - 1 - i % vocab_size));
    }
    TokenFile::write(path_, tokens, vocab_size);
    const TokenFile file = TokenFile::open(path_);
    EXPECT_EQ(file.size(), 200'000);
    EXPECT_EQ(file.vocab_size(), vocab_size);
    EXPECT_EQ(all_tokens(file), std::vector<int64_t>(tokens.begin(), tokens.end()));
    EXPECT_EQ(file[0], vocab_size - 1);
    EXPECT_EQ(file[199'999], tokens.back());
    EXPECT_EQ(std::filesystem::file_size(path_), 48 + 200'000 * (vocab_size == 65536 ? 2 : 4));
  }
}

TEST_F(TokenFileTest, TheBytesAreAsDocumented) {
  TokenFile::write(path_, std::vector<int32_t>{1, 513}, 1000, "0123456789abcdef");
  const std::string expected(
      "TAPETOKS\2\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\xE8\3\0\0\0\0\0\0"
      "0123456789abcdef\1\0\1\2",
      52);
  EXPECT_EQ(read_file(path_), expected);
}

TEST_F(TokenFileTest, APartIsCopiedFromWhereItStands) {
  TokenFile::write(path_, std::vector<int32_t>{5, 6, 7, 8}, 10);
  const TokenFile file = TokenFile::open(path_);
  std::vector<int64_t> part(2);
  file.copy(1, 2, part.data());
  EXPECT_THAT(part, ElementsAre(6, 7));
  file.copy(4, 0, nullptr);
}

TEST_F(TokenFileTest, ATemporaryOneLeavesNoName) {
  const std::filesystem::path folder = path_ + ".folder";
  std::filesystem::create_directories(folder);
  ASSERT_EQ(setenv("TMPDIR", folder.c_str(), /*overwrite=*/1), 0);
  const TokenFile file = TokenFile::temporary(std::vector<int32_t>{5, 0, 9}, 10);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  EXPECT_THAT(all_tokens(file), ElementsAre(5, 0, 9));
  EXPECT_THROW(TokenFile::temporary(std::vector<int32_t>{10}, 10), ValueError);
  EXPECT_TRUE(std::filesystem::is_empty(folder));  // nor after an error
  ASSERT_EQ(setenv("TMPDIR", (folder / "none").c_str(), 1), 0);
  EXPECT_ANY_THROW(TokenFile::temporary(std::vector<int32_t>{1}, 10));
  unsetenv("TMPDIR");
}

TEST_F(TokenFileTest, NoTokensAreAFileToo) {
  TokenFile::write(path_, {}, 10);
  EXPECT_EQ(TokenFile::open(path_).size(), 0);
}

TEST_F(TokenFileTest, StaysReadableWhenMovedAndWhenReplaced) {
  TokenFile::write(path_, std::vector<int32_t>{5}, 10);
  TokenFile file = TokenFile::open(path_);
  TokenFile::write(path_, std::vector<int32_t>{6, 7}, 10);
  const TokenFile moved = std::move(file);
  EXPECT_THAT(all_tokens(moved), ElementsAre(5));
  file = TokenFile::open(path_);
  EXPECT_THAT(all_tokens(file), ElementsAre(6, 7));
}

TEST_F(TokenFileTest, ReadingBeyondTheEndIsAnError) {
  TokenFile::write(path_, std::vector<int32_t>{1, 2, 3}, 10);
  const TokenFile file = TokenFile::open(path_);
  std::vector<int64_t> out(4);
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  const std::vector<std::pair<int64_t, int64_t>> beyond = {{0, 4}, {3, 1},     {-1, 1},       {0, -1},
                                                           {4, 0}, {1, kHuge}, {kHuge, kHuge}};
  for (const auto& range : beyond) {
    EXPECT_THAT(
        [&] { file.copy(range.first, range.second, out.data()); },
        ThrowsMessage<ValueError>(
            AllOf(HasSubstr(path_), HasSubstr("from " + std::to_string(range.first)), HasSubstr("holds 3"))));
  }
  EXPECT_THROW(file[3], ValueError);
  EXPECT_THROW(file[-1], ValueError);
}

TEST_F(TokenFileTest, WritingATokenOutsideTheVocabularyLeavesTheOldFile) {
  TokenFile::write(path_, std::vector<int32_t>{1}, 10);
  for (const int32_t token : {10, -1}) {
    EXPECT_THAT(
        [&] {
          TokenFile::write(path_, std::vector<int32_t>{0, token}, 10);
        },
        ThrowsMessage<ValueError>(
            AllOf(HasSubstr(path_), HasSubstr("token 1 is " + std::to_string(token)), HasSubstr("of 10"))));
  }
  EXPECT_THROW(TokenFile::write(path_, {}, 0), ValueError);
  EXPECT_THAT(all_tokens(TokenFile::open(path_)), ElementsAre(1));
}

TEST_F(TokenFileTest, TheMachinesRefusalIsNoHalfFile) {
  const std::string path = "/no/such/folder/tokens";
  EXPECT_THAT([&] { TokenFile::write(path, std::vector<int32_t>{1}, 10); },
              ThrowsMessage<SystemError>(AllOf(HasSubstr(path), HasSubstr("No such file"))));
}

TEST_F(TokenFileTest, ATruncatedOrLengthenedFileIsAnError) {
  TokenFile::write(path_, std::vector<int32_t>{1, 2, 3}, 10);
  const std::string whole = read_file(path_);
  for (size_t size = 0; size < whole.size(); ++size) {
    write_file_atomically(path_, whole.substr(0, size));
    expect_open_error(size < 48 ? "less than its header" : "promises 3 tokens");
  }
  write_file_atomically(path_, whole + "x");
  expect_open_error("promises 3 tokens");
}

// It is mapped nowhere; reading its header from there is undefined.
TEST_F(TokenFileTest, AnEmptyFileIsAnErrorAndNotReadFromNull) {
  write_file_atomically(path_, "");
  expect_open_error("0 bytes are less than its header of 48");
}

TEST_F(TokenFileTest, ADamagedHeaderIsAnError) {
  TokenFile::write(path_, std::vector<int32_t>{1, 2, 3}, 10);
  const std::string whole = read_file(path_);
  const auto damage = [&](size_t at, char byte, const std::string& part) {
    write_file_atomically(path_, whole);
    spoil(at, byte);
    expect_open_error(part);
  };
  damage(0, 'X', "does not begin with TAPETOKS");
  damage(8, 3, "version 3, and this program reads versions up to 2");
  damage(8, 0, "version 0");
  // The number of tokens: wrong, negative, and so large that its bytes overflow.
  damage(16, 4, "promises 4 tokens");
  damage(23, '\x80', "promises -");
  damage(23, 0x40, "promises 4611686018427387907 tokens");
  // The vocabulary: negative, and wide enough for another width.
  damage(31, '\x80', "vocab_size is -");
  damage(26, 1, "promises 3 tokens of 4 bytes");
}

TEST_F(TokenFileTest, ADamagedTokenIsAnErrorThatSaysWhichOne) {
  TokenFile::write(path_, std::vector<int32_t>{1, 2, 3}, 10);
  spoil(50, 10);
  const TokenFile file = TokenFile::open(path_);
  EXPECT_THAT([&] { all_tokens(file); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr(path_), HasSubstr("token 1 is 10"))));
  EXPECT_THROW(file[1], ValueError);
  EXPECT_EQ(file[2], 3);
}

TEST_F(TokenFileTest, TokensOfAnotherTokenizerAreAnError) {
  TokenFile::write(path_, std::vector<int32_t>{1, 2, 3}, 10);
  EXPECT_EQ(TokenFile::open(path_, 10).size(), 3);
  EXPECT_THAT([&] { TokenFile::open(path_, 11); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr(path_), HasSubstr("of 10"), HasSubstr("has 11"))));
}

TEST_F(TokenFileTest, TokensOfAnotherTokenizerOfTheSameSizeAreAnError) {
  const std::string hash = "0123456789abcdef", other = "fedcba9876543210";
  TokenFile::write(path_, std::vector<int32_t>{1, 2, 3}, 10, hash);
  const TokenFile file = TokenFile::open(path_, 10, hash);
  EXPECT_EQ(file.tokenizer_hash(), hash);
  EXPECT_THAT(all_tokens(file), ElementsAre(1, 2, 3));
  EXPECT_EQ(TokenFile::open(path_).size(), 3);  // nobody asks
  EXPECT_THAT([&] { TokenFile::open(path_, 10, other); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr(path_), HasSubstr(hash), HasSubstr(other),
                                              HasSubstr("encode the text again"))));
  EXPECT_EQ(TokenFile::temporary(std::vector<int32_t>{1}, 10, hash).tokenizer_hash(), hash);
  EXPECT_THAT([&] { TokenFile::write(path_, std::vector<int32_t>{1}, 10, "short"); },
              ThrowsMessage<ValueError>(HasSubstr("\"short\"")));
  TokenFile::write(path_, std::vector<int32_t>{1}, 10);
  EXPECT_EQ(TokenFile::open(path_, 10, hash).tokenizer_hash(), "");  // it does not tell
}

TEST_F(TokenFileTest, AFileOfVersion1IsReadAndTellsNoTokenizer) {
  TokenFile::write(path_, std::vector<int32_t>{1, 2, 3}, 10, "0123456789abcdef");
  std::string bytes = read_file(path_);
  bytes[8] = 1;
  write_file_atomically(path_, bytes.erase(32, 16));
  const TokenFile file = TokenFile::open(path_, 10, "fedcba9876543210");
  EXPECT_THAT(all_tokens(file), ElementsAre(1, 2, 3));
  EXPECT_EQ(file.tokenizer_hash(), "");
}

TEST_F(TokenFileTest, AMissingFileIsAnErrorThatNamesIt) { expect_open_error("there is no file"); }

}  // namespace
}  // namespace tapehead
