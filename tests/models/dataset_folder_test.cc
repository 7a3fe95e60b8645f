// Documents as tokens, and when tokens are made again.
#include "tapehead/models/dataset_folder.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/core/folder_lock.h"
#include "tapehead/models/content_hash.h"
#include "tapehead/models/text.h"
#include "tapehead/tests/models/sources_fixture.h"

namespace tapehead {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class DatasetFolderTest : public SourcesTest {
 protected:
  DatasetFolder prepare(const DatasetRecipe& recipe, std::vector<double> weights = {}) {
    notes_.clear();
    return prepare_dataset(path("tokens"), recipe, std::move(weights),
                           {.on_note = [&](const std::string& line) { notes_ += line + "\n"; }});
  }

  static std::vector<int64_t> all_tokens(const TokenStream& stream) {
    std::vector<int64_t> tokens(static_cast<size_t>(stream.size()));
    stream.copy(0, stream.size(), tokens.data());
    return tokens;
  }

  static std::vector<int64_t> encode(const Tokenizer& tokenizer, const std::string& text) {
    const std::vector<int32_t> ids = tokenizer.encode(text);
    return {ids.begin(), ids.end()};
  }

  std::vector<std::string> names() const {
    std::vector<std::string> list;
    for (const auto& entry : fs::directory_iterator(path("tokens"))) list.push_back(entry.path().filename());
    std::ranges::sort(list);
    return list;
  }

  std::string notes_;
};

// Text without a place to be cut at, and longer than all that is encoded at once; on any number of threads.
TEST_F(DatasetFolderTest, ATextHasTheTokensOfTheWholeTextHoweverItIsCut) {
  std::string text = lines(30'000) + std::string(1 << 20, 'z') + "\n\n";
  for (int i = 0; i < 40'000; ++i) text += fmt::format("\u4e2d\u6587{}\u3002\n\n", i % 100);
  text += lines(100'000);
  ASSERT_GT(text.size(), 4 << 20);
  write("book.txt", text);
  write("small.txt", lines(2000));
  const Tokenizer tokenizer = Tokenizer::train(lines(2000), 400);
  tokenizer.save(path("tokenizer"));
  const int before = omp_get_max_threads();
  for (const int threads : {1, 3}) {
    omp_set_num_threads(threads);
    fs::remove_all(path("tokens"));
    const DatasetFolder made = prepare({.sources = {path("book.txt")},
                                        .tokenizer = path("tokenizer"),
                                        .documents = {.held_out = 0.3, .split_seed = 5},
                                        .shard_bytes = 400'000});
    std::string training, held_out;
    for (const TextBlock& block : split_held_out(text, 0.3, 5)) {
      (block.held_out ? held_out : training) +=
          text.substr(static_cast<size_t>(block.begin), static_cast<size_t>(block.end - block.begin));
    }
    EXPECT_TRUE(all_tokens(made.training.streams()[0]) == encode(tokenizer, training)) << threads;
    EXPECT_TRUE(all_tokens(made.held_out->streams()[0]) == encode(tokenizer, held_out)) << threads;
    EXPECT_EQ(made.training.streams()[0].documents(), nullptr);
  }
  omp_set_num_threads(before);
  EXPECT_TRUE(fs::exists(path("tokens/training-0-00005.tokens")));
  EXPECT_EQ(fs::file_size(path("tokens/training-0-00005.tokens")), 48 + 400'000);
}

TEST_F(DatasetFolderTest, DocumentsEndWithTheEndOfTextAndPromptsAreMarked) {
  write("a.jsonl", "{\"prompt\": \"one two\", \"completion\": \" three\"}\n{\"text\": \"four\"}\n");
  Tokenizer::train(lines(100), 300).save(path("tokenizer"));
  const DatasetFolder made =
      prepare({.sources = {path("a.jsonl")}, .tokenizer = path("tokenizer"), .documents = {.held_out = 0}});
  const auto ids = [&](const char* text) { return encode(made.tokenizer, text); };
  std::vector<int64_t> expected = ids("one two");
  const auto prompt = std::ssize(expected);
  for (const char* text : {" three", "four"}) {
    for (const int64_t id : ids(text)) expected.push_back(id);
    expected.push_back(made.tokenizer.end_of_text());
  }
  const TokenStream& stream = made.training.streams()[0];
  EXPECT_EQ(all_tokens(stream), expected);
  const DocumentTable& table = *stream.documents();
  ASSERT_EQ(table.size(), 2);
  EXPECT_EQ(table[0].first_target, prompt);
  EXPECT_EQ(table[1].begin, table[0].end);
  EXPECT_FALSE(table[1].has_prompt());
  EXPECT_FALSE(made.held_out.has_value());
}

// As the post-processor of Llama 3 has it, of which encode() does nothing.
TEST_F(DatasetFolderTest, DocumentsBeginWithTheBeginningOfTextWhereThereIsOne) {
  write("a.jsonl", "{\"prompt\": \"one two\", \"completion\": \" three\"}\n{\"text\": \"four\"}\n");
  const std::string llama3 = "tests/golden/tokenizer/llama3";
  const DatasetFolder made =
      prepare({.sources = {path("a.jsonl")}, .tokenizer = llama3, .documents = {.held_out = 0}});
  const std::vector<int64_t> begin = {made.tokenizer.beginning_of_text().value()},
                             end = {made.tokenizer.end_of_text()};
  std::vector<int64_t> expected;
  for (const std::vector<int64_t>& part :
       {begin, encode(made.tokenizer, "one two"), encode(made.tokenizer, " three"), end,  //
        begin, encode(made.tokenizer, "four"), end})
    expected.insert(expected.end(), part.begin(), part.end());
  const TokenStream& stream = made.training.streams()[0];
  EXPECT_EQ(all_tokens(stream), expected);
  // The beginning belongs to the prompt.
  EXPECT_EQ((*stream.documents())[0].first_target, 1 + std::ssize(encode(made.tokenizer, "one two")));

  const std::string text = write("book.txt", lines(500));
  const DatasetFolder whole = prepare({.sources = {text}, .tokenizer = llama3, .documents = {.held_out = 0}});
  std::vector<int64_t> once = begin;
  for (const int64_t id : encode(made.tokenizer, lines(500))) once.push_back(id);
  EXPECT_EQ(all_tokens(whole.training.streams()[0]), once);
}

// Hazard: folders of different files may hold the same bytes in a row.
TEST(ContentHashTest, WhatIsAddedCountsWithItsLengthAndInItsOrder) {
  const auto hash = [](const std::vector<std::string>& parts) {
    ContentHash all;
    for (const std::string& part : parts) all.add(part);
    return all.digest();
  };
  EXPECT_EQ(hash({"ab", "c"}), hash({"ab", "c"}));
  EXPECT_NE(hash({"ab", "c"}), hash({"a", "bc"}));
  EXPECT_NE(hash({"ab", "c"}), hash({"c", "ab"}));
  EXPECT_NE(hash({"ab", ""}), hash({"ab"}));
}

TEST_F(DatasetFolderTest, TokensAreKeptUntilSomethingChanges) {
  const std::string book = write("book.txt", lines(500)), notes = path("notes");
  write("notes/a.txt", "one note");
  write("notes/b.txt", "another note");
  DatasetRecipe recipe = {.sources = {book, notes}, .vocab_size = 300};
  EXPECT_FALSE(prepare(recipe).reused);
  EXPECT_EQ(notes_, "");
  EXPECT_TRUE(prepare(recipe, {2, 1}).reused);  // weights are no part of the tokens
  fs::create_directories(folder_ / "elsewhere");
  fs::copy(folder_ / "notes", folder_ / "elsewhere/notes", fs::copy_options::recursive);
  recipe.sources[1] = path("elsewhere/notes/");  // nor is the place
  EXPECT_TRUE(prepare(recipe).reused);
  EXPECT_EQ(notes_, "");

  const auto expect_again = [&](const std::string& reason) {
    EXPECT_FALSE(prepare(recipe).reused);
    EXPECT_THAT(notes_, AllOf(HasSubstr("data: tokens are made again: "), HasSubstr(reason)));
    EXPECT_EQ(std::ranges::count(notes_, '\n'), 1) << notes_;
    EXPECT_TRUE(prepare(recipe).reused) << notes_;
  };
  write("elsewhere/notes/b.txt", "another n0te");
  expect_again("notes has changed");
  fs::rename(path("elsewhere/notes/b.txt"), path("elsewhere/notes/c.txt"));
  expect_again("notes has changed");
  recipe.sources = {path("elsewhere/notes"), book};
  expect_again("notes stands in the place of book.txt");
  recipe.sources = {path("elsewhere/notes")};
  expect_again("there are 1 sources, and were 2");
  recipe.documents.split_seed = 7;
  expect_again("split_seed is 7, and was 0");
  recipe.vocab_size = 310;
  expect_again("for 310 tokens");
  Tokenizer::train(lines(100), 300).save(path("tokenizer"));
  recipe.tokenizer = path("tokenizer");
  expect_again("tokenizer is ");
  Tokenizer::train(lines(1000), 310).save(path("tokenizer"));
  expect_again("tokenizer is ");
  // Files of the first recipe, which had two sources, are gone.
  EXPECT_THAT(names(), ElementsAre("held_out-0-00000.tokens", "held_out-0.documents", "manifest.json",
                                   "tokenizer", "training-0-00000.tokens", "training-0.documents"));
}

// Hazard: a run that takes over another's tokenizer makes their shared tokens again, and the other loses its own.
TEST_F(DatasetFolderTest, TheTokenizerThatMadeTheTokensMakesNoneAgainWhereverItIsTakenFrom) {
  DatasetRecipe recipe = {.sources = {write("book.txt", lines(500))}, .vocab_size = 300};
  const DatasetFolder trained = prepare(recipe);
  trained.tokenizer.save(path("copy"));
  recipe.tokenizer = path("copy");
  // Fewer and fewer files of the same one.
  for (const char* file : {"none", "tokenizer_config.json", "tokenizer.json"}) {
    fs::remove(path("copy/") + file);
    const DatasetFolder given = prepare(recipe);
    EXPECT_TRUE(given.reused) << file << notes_;
    EXPECT_EQ(given.hash, trained.hash) << file;
  }
  fs::remove_all(path("tokens"));
  EXPECT_FALSE(prepare(recipe).reused);
  trained.tokenizer.save(path("copy"));
  EXPECT_TRUE(prepare(recipe).reused) << notes_;
}

TEST_F(DatasetFolderTest, WhatIsDamagedIsMadeAgain) {
  const DatasetRecipe recipe = {.sources = {write("book.txt", lines(500))}, .vocab_size = 300};
  prepare(recipe);
  const auto expect_again = [&](const std::string& reason) {
    EXPECT_THROW(open_dataset(path("tokens")), ValueError) << reason;
    EXPECT_FALSE(prepare(recipe).reused);
    EXPECT_THAT(notes_, HasSubstr(reason));
    EXPECT_NO_THROW(open_dataset(path("tokens")));
  };
  fs::remove(path("tokens/training-0-00000.tokens"));
  expect_again("training-0-00000.tokens");
  fs::resize_file(path("tokens/training-0-00000.tokens"), 100);
  expect_again("is damaged");
  fs::copy_file(path("tokens/held_out-0-00000.tokens"), path("tokens/training-0-00000.tokens"),
                fs::copy_options::overwrite_existing);
  expect_again("tokens, and should hold");
  write("tokens/manifest.json", "{\"version\": 1, ");
  expect_again("manifest.json is damaged");
  write("tokens/manifest.json", "{\"version\": 2}");
  expect_again("version 2");
  fs::remove(path("tokens/manifest.json"));
  write("tokens/training-0-00000.tokens.tmp.1.2", "rest");
  expect_again("they were not finished");
  EXPECT_FALSE(fs::exists(path("tokens/training-0-00000.tokens.tmp.1.2")));
}

TEST_F(DatasetFolderTest, WhoComesSecondWaitsAndUsesWhatTheFirstMade) {
  const DatasetRecipe recipe = {.sources = {write("book.txt", lines(500))}, .vocab_size = 300};
  std::atomic<bool> waits = false;
  std::string note;
  std::optional<FolderLock> first(std::in_place, path("tokens"), [](const std::string&) { FAIL(); });
  std::optional<DatasetFolder> second;
  std::thread other([&] {
    second = prepare_dataset(path("tokens"), recipe, {}, {.on_note = [&](const std::string& line) {
                               note = line;
                               waits = true;
                             }});
  });
  while (!waits) std::this_thread::yield();
  EXPECT_EQ(note, fmt::format("data: process {} is at work in {}: waiting until it is done", getpid(),
                              path("tokens")));
  EXPECT_FALSE(fs::exists(path("tokens/manifest.json")));
  // What the first makes meanwhile.
  prepare_dataset(path("elsewhere"), recipe);
  fs::copy(path("elsewhere"), path("tokens"), fs::copy_options::recursive);
  first.reset();
  other.join();
  EXPECT_TRUE(second->reused);
  EXPECT_FALSE(fs::exists(path("tokens/lock")));
}

// Without the lock, one would remove the files that another is writing.
TEST_F(DatasetFolderTest, ManyAtOnceMakeTokensOnce) {
  const DatasetRecipe recipe = {
      .sources = {write("a.jsonl", json_lines(2000))}, .vocab_size = 300, .shard_bytes = 2000};
  const std::vector<int64_t> expected =
      all_tokens(prepare_dataset(path("elsewhere"), recipe).training.streams()[0]);
  for (int round = 0; round < 5; ++round) {
    fs::remove_all(path("tokens"));
    std::atomic<int> made = 0, right = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        const DatasetFolder data = prepare_dataset(path("tokens"), recipe);
        made += !data.reused;
        right += all_tokens(data.training.streams()[0]) == expected;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(made, 1);
    EXPECT_EQ(right, 4);
  }
}

TEST_F(DatasetFolderTest, ATokenizerThatDidNotMakeTheTokensIsTold) {
  const std::string book = write("book.txt", lines(500));
  const Tokenizer own = Tokenizer::train("one two three one two", 262),
                  other = Tokenizer::train("four five six four five", 262);
  ASSERT_EQ(own.vocab_size(), other.vocab_size());
  own.save(path("own"));
  const DatasetRecipe recipe = {.sources = {book}, .tokenizer = path("own")};
  const DatasetFolder made = prepare(recipe);
  EXPECT_EQ(made.training.tokenizer_hash(), own.hash());
  EXPECT_EQ(made.held_out->tokenizer_hash(), own.hash());
  other.save(path("tokens/tokenizer"));
  EXPECT_THAT([&] { open_dataset(path("tokens")); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr(path("tokens/tokenizer") + " do not match"),
                                              HasSubstr(own.hash()), HasSubstr(other.hash()),
                                              HasSubstr("put the tokenizer back"))));
  EXPECT_FALSE(prepare(recipe).reused);
  EXPECT_EQ(open_dataset(path("tokens")).tokenizer.hash(), own.hash());
}

// What a full disk does to write(), without a disk to fill, at every place where it may happen.
TEST_F(DatasetFolderTest, AFullDiskLeavesNothingThatIsTakenAsWhole) {
  const DatasetRecipe recipe = {
      .sources = {write("a.jsonl", json_lines(3000))}, .vocab_size = 300, .shard_bytes = 20'000};
  prepare(recipe);
  std::vector<rlim_t> sizes;
  for (const std::string& name : names())
    if (name != "tokenizer") sizes.push_back(fs::file_size(path("tokens/" + name)));
  fs::remove_all(path("tokens"));
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  int refused = 0;
  for (const rlim_t size : sizes) {
    const rlimit limit{size - 1, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      prepare(recipe);
    } catch (const SystemError&) {
      ++refused;
      EXPECT_THROW(open_dataset(path("tokens")), ValueError);
    }
    ::setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_FALSE(prepare(recipe).reused);
    fs::remove_all(path("tokens"));
  }
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(refused, std::ssize(sizes));
}

TEST_F(DatasetFolderTest, SaysWhatWasPassedOver) {
  write("notes/a.txt", "one note of several words");
  for (int i = 0; i < 7; ++i) write(fmt::format("notes/empty{}", i), "");
  write("notes/b.jsonl", "{\"text\": \"\"}\n{\"text\": 7}\n{\"text\": \"good\"}\n");
  prepare(
      {.sources = {path("notes")}, .vocab_size = 260, .documents = {.held_out = 0, .skip_bad_lines = true}});
  EXPECT_THAT(notes_, HasSubstr("empty or binary: " + path("notes/empty0")));
  EXPECT_THAT(notes_, HasSubstr("empty4 and 2 more\n"));
  EXPECT_THAT(notes_, HasSubstr("1 empty documents passed over"));
  EXPECT_THAT(notes_, HasSubstr("1 bad lines passed over, the first " + path("notes/b.jsonl") + ":2: "));
}

TEST_F(DatasetFolderTest, SourcesThatCannotBeUsedLeaveNoFolder) {
  const auto expect_error = [&](const DatasetRecipe& recipe, const char* part) {
    EXPECT_THAT([&] { prepare(recipe); }, ThrowsMessage<ValueError>(HasSubstr(part)));
    EXPECT_FALSE(fs::exists(path("tokens/manifest.json")));
  };
  expect_error({.sources = {path("missing")}}, "missing");
  write("one.jsonl", "{\"text\": \"the only one\"}");
  expect_error({.sources = {path("one.jsonl")}, .vocab_size = 260}, "nothing is held out of 1 documents");
  write("bad.jsonl", "{\"text\": \"good\"}\n{\n");
  expect_error({.sources = {path("bad.jsonl")}, .vocab_size = 260}, "bad.jsonl:2");
}

TEST_F(DatasetFolderTest, OtherSourcesAreTold) {
  const std::string book = write("book.txt", lines(500));
  prepare({.sources = {book}, .vocab_size = 300});
  check_sources(path("tokens"), {book});
  write("other.txt", lines(400));
  EXPECT_THAT([&] { check_sources(path("tokens"), {path("other.txt")}); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr("other sources"), HasSubstr("other.txt"))));
  write("book.txt", lines(499));
  EXPECT_THAT([&] { check_sources(path("tokens"), {book}); },
              ThrowsMessage<ValueError>(HasSubstr("book.txt has changed")));
}

}  // namespace
}  // namespace tapehead
