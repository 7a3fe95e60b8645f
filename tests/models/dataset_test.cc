#include "tapehead/models/dataset.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tapehead/core/error.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class DatasetTest : public testing::Test {
 protected:
  DatasetTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  // The tokens first, first + 1, ..., in a file.
  TokenFile tokens(int64_t first, int64_t count, int64_t vocab_size = 100) {
    std::vector<int32_t> numbers;
    for (int64_t i = 0; i < count; ++i) numbers.push_back(static_cast<int32_t>(first + i));
    const std::string path = folder_ + "/" + std::to_string(files_++) + ".tokens";
    TokenFile::write(path, numbers, vocab_size);
    return TokenFile::open(path);
  }

  // Each document's length and how much of it is a prompt.
  DocumentTable documents(const std::vector<std::pair<int64_t, int64_t>>& lengths) {
    DocumentTableWriter writer(table_);
    for (const auto& [count, prompt] : lengths) writer.append(count, prompt);
    writer.commit();
    return DocumentTable::open(table_);
  }

  // The table with one byte of it changed.
  void spoil(size_t at, char byte) {
    std::string bytes = read_file(table_);
    bytes.at(at) = byte;
    write_file_atomically(table_, bytes);
  }

  const std::string folder_ =
      testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::string table_ = folder_ + "/table.documents";
  int files_ = 0;
};

template <class... Files>
std::vector<TokenFile> list(Files... files) {
  std::vector<TokenFile> all;
  (all.push_back(std::move(files)), ...);
  return all;
}

// ---- Documents

TEST_F(DatasetTest, DocumentsStandWhereTheyWereWritten) {
  const DocumentTable table = documents({{3, 0}, {1, 0}, {7, 4}});
  EXPECT_EQ(table.size(), 3);
  EXPECT_EQ(table.prompts(), 1);
  EXPECT_EQ(table.tokens(), 11);
  EXPECT_EQ(table[0], (DocumentPlace{0, 0, 3}));
  EXPECT_EQ(table[1], (DocumentPlace{3, 3, 4}));
  EXPECT_EQ(table[2], (DocumentPlace{4, 8, 11}));
  const std::vector<int64_t> owners = {0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 2};
  for (int64_t i = 0; i < 11; ++i) EXPECT_EQ(table.find(i), owners[static_cast<size_t>(i)]) << i;
}

TEST_F(DatasetTest, ManyDocumentsAreWrittenInParts) {
  std::vector<std::pair<int64_t, int64_t>> lengths;
  for (int64_t i = 0; i < 100'000; ++i) lengths.emplace_back(1 + i % 5, i % 5 / 2);
  const DocumentTable table = documents(lengths);
  int64_t begin = 0;
  for (int64_t i = 0; i < table.size(); ++i) {
    ASSERT_EQ(table[i], (DocumentPlace{begin, begin + i % 5 / 2, begin + 1 + i % 5}));
    begin += 1 + i % 5;
  }
  EXPECT_EQ(table.tokens(), begin);
}

TEST_F(DatasetTest, ADocumentWithoutATargetIsAnError) {
  DocumentTableWriter writer(table_);
  EXPECT_THROW(writer.append(0, 0), ValueError);
  EXPECT_THROW(writer.append(3, -1), ValueError);
  EXPECT_THAT([&] { writer.append(3, 3); },
              ThrowsMessage<ValueError>(HasSubstr("3 tokens, 3 of them a prompt")));
  EXPECT_FALSE(std::filesystem::exists(table_));  // nothing before it is committed
}

TEST_F(DatasetTest, ADamagedTableIsAnErrorThatNamesIt) {
  documents({{3, 0}, {7, 4}});
  const std::string whole = read_file(table_);
  const auto expect_error = [&](const char* part, auto&& use) {
    EXPECT_THAT(use, ThrowsMessage<ValueError>(AllOf(HasSubstr(table_), HasSubstr(part))));
    write_file_atomically(table_, whole);
  };
  const auto open = [&] { DocumentTable::open(table_); };
  for (size_t size = 0; size < whole.size(); ++size) {
    write_file_atomically(table_, whole.substr(0, size));
    expect_error(size < 40 ? "does not begin with TAPEDOCS" : "promises 2 documents", open);
  }
  spoil(0, 'X');
  expect_error("does not begin with", open);
  spoil(8, 2);
  expect_error("version 2", open);
  spoil(16, 3);
  expect_error("promises 3 documents", open);
  spoil(23, 0x40);  // so many that their bytes overflow
  expect_error("is damaged", open);
  spoil(32, 1);
  expect_error("of 1 tokens", open);
  const auto read = [&] { DocumentTable::open(table_)[0]; };
  spoil(56, 20);  // the second document's begin
  expect_error("document 0 has tokens 0 to 20", read);
  spoil(48, 3);  // the first's first target
  expect_error("from 3 on", read);
}

// ---- Streams

TEST_F(DatasetTest, AStreamReadsOnFromShardToShard) {
  const TokenStream stream(list(tokens(0, 4), tokens(4, 4), tokens(8, 3)), std::nullopt);
  EXPECT_EQ(stream.size(), 11);
  EXPECT_EQ(stream.vocab_size(), 100);
  for (int64_t begin = 0; begin <= 11; ++begin) {
    for (int64_t count = 0; begin + count <= 11; ++count) {
      std::vector<int64_t> read(static_cast<size_t>(count)), expected;
      stream.copy(begin, count, read.data());
      for (int64_t i = 0; i < count; ++i) expected.push_back(begin + i);
      ASSERT_EQ(read, expected) << begin << " " << count;
    }
  }
  std::vector<int64_t> out(20);
  EXPECT_THROW(stream.copy(0, 12, out.data()), ValueError);
  EXPECT_THROW(stream.copy(12, 0, out.data()), ValueError);
  EXPECT_THROW(stream.copy(-1, 1, out.data()), ValueError);
}

TEST_F(DatasetTest, ShardsThatDoNotBelongTogetherAreAnError) {
  const auto expect_error = [&](std::vector<TokenFile> files, const char* part) {
    EXPECT_THAT([&] { TokenStream(std::move(files), std::nullopt); },
                ThrowsMessage<ValueError>(HasSubstr(part)));
  };
  expect_error({}, "at least one file");
  expect_error(list(tokens(0, 4), tokens(4, 3), tokens(7, 3)), "shard 1 has 3 tokens");
  expect_error(list(tokens(0, 4), tokens(4, 5)), "shard 1 has 5 tokens");
  expect_error(list(tokens(0, 4), tokens(4, 4, 200)), "vocabulary of 200");
  EXPECT_THAT(
      [&] {
        TokenStream(list(tokens(0, 9)), documents({{3, 0}, {7, 4}}));
      },
      ThrowsMessage<ValueError>(HasSubstr("documents of 10 tokens are given for 9")));
}

// ---- Datasets

TEST_F(DatasetTest, StreamsOfOneVocabularyMakeADataset) {
  std::vector<TokenStream> streams;
  streams.emplace_back(tokens(0, 4));
  streams.emplace_back(tokens(4, 7));
  EXPECT_EQ(Dataset(std::move(streams)).size(), 11);
  EXPECT_THROW(Dataset(std::vector<TokenStream>()), ValueError);
  std::vector<TokenStream> two;
  two.emplace_back(tokens(0, 4));
  two.emplace_back(tokens(4, 7, 200));
  EXPECT_THAT([&] { Dataset(std::move(two)); }, ThrowsMessage<ValueError>(HasSubstr("another of 200")));
}

TEST_F(DatasetTest, AWeightThatIsNoneIsAnError) {
  const auto expect_error = [&](std::vector<double> weights, const char* part) {
    std::vector<TokenStream> streams;
    streams.emplace_back(tokens(0, 4));
    EXPECT_THAT([&] { Dataset(std::move(streams), weights); }, ThrowsMessage<ValueError>(HasSubstr(part)));
  };
  expect_error({1, 2}, "2 weights for 1 sources");
  expect_error({0}, "weight is 0");
  expect_error({-1}, "weight is -1");
  expect_error({NAN}, "weight is nan");
  expect_error({INFINITY}, "weight is inf");
}

}  // namespace
}  // namespace tapehead
