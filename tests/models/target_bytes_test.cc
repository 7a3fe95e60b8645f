#include "tapehead/models/target_bytes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tapehead {
namespace {

class TargetBytesTest : public testing::Test {
 protected:
  TargetBytesTest() { std::filesystem::create_directories(folder_); }

  TokenFile file(const std::vector<int32_t>& ids) const {
    return TokenFile::temporary(ids, tokenizer_.vocab_size(), tokenizer_.hash());
  }

  const std::string folder_ = testing::TempDir() + "target_bytes";
  const Tokenizer tokenizer_ = Tokenizer::train("the theme of the thesis then the theorem", 262);
};

TEST_F(TargetBytesTest, OfOneTextTheyAreAllButTheFirstTokensAndItsEnd) {
  const std::string text = "the theme, and \xC3\xA9ven then\n";
  std::vector<int32_t> ids = tokenizer_.encode(text);
  ASSERT_LT(std::ssize(ids), std::ssize(text));  // some stand for several bytes
  const auto first = std::ssize(tokenizer_.decode({ids.data(), 1}));
  ids.push_back(tokenizer_.end_of_text());
  EXPECT_EQ(target_bytes(file(ids), tokenizer_), std::ssize(text) - first);
}

// Hazard: a text longer than the buffer that it is counted through.
TEST_F(TargetBytesTest, OfALongTextNoneIsLostOrCountedTwice) {
  const int64_t count = 200'000;
  const std::vector<int32_t> ids(static_cast<size_t>(count), tokenizer_.encode("\n").front());
  EXPECT_EQ(target_bytes(file(ids), tokenizer_), count - 1);
}

TEST_F(TargetBytesTest, PromptsAreNotLearntAndDocumentsEndWithNothing) {
  const std::vector<std::pair<std::string, std::string>> documents = {
      {"", "then"}, {"the theme?", " the thesis"}, {"", "of"}};
  std::vector<int32_t> ids;
  const std::string table = folder_ + "/table.documents";
  DocumentTableWriter writer(table);
  for (const auto& [prompt, completion] : documents) {
    const auto before = std::ssize(ids);
    for (const std::string* part : {&prompt, &completion}) {
      const std::vector<int32_t> tokens = tokenizer_.encode(*part);
      ids.insert(ids.end(), tokens.begin(), tokens.end());
    }
    ids.push_back(tokenizer_.end_of_text());
    writer.append(std::ssize(ids) - before, std::ssize(tokenizer_.encode(prompt)));
  }
  writer.commit();
  std::vector<TokenFile> files;
  files.push_back(file(ids));
  std::vector<TokenStream> streams;
  streams.emplace_back(std::move(files), DocumentTable::open(table));
  streams.emplace_back(file(ids));
  const auto first = std::ssize(tokenizer_.decode({ids.data(), 1}));
  const int64_t completions = std::ssize(std::string("then the thesisof")),
                prompts = std::ssize(documents[1].first);
  EXPECT_EQ(target_bytes(Dataset(std::move(streams)), tokenizer_),
            completions - first + completions + prompts - first);
}

}  // namespace
}  // namespace tapehead
