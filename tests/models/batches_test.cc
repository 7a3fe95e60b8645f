#include "tapehead/models/batches.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "tapehead/core/error.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kNone = kIgnoredTarget;

std::string path(const std::string& end) {
  return testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() + end;
}

// The tokens first, first + 1, ...: a token tells its place.
TokenFile counting_file(int64_t count, int64_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), static_cast<int32_t>(first));
  TokenFile::write(path(".tokens"), tokens, 10'000);
  return TokenFile::open(path(".tokens"));
}

Dataset counting_tokens(int64_t count) { return counting_file(count); }

// The tokens 0, 1, ... in documents, of which length and prompt are given.
Dataset documents(const std::vector<std::pair<int64_t, int64_t>>& lengths) {
  DocumentTableWriter writer(path(".documents"));
  int64_t count = 0;
  for (const auto& [tokens, prompt] : lengths) {
    writer.append(tokens, prompt);
    count += tokens;
  }
  writer.commit();
  std::vector<TokenFile> files;
  files.push_back(counting_file(count));
  std::vector<TokenStream> streams;
  streams.emplace_back(std::move(files), DocumentTable::open(path(".documents")));
  return Dataset(std::move(streams));
}

// Streams of so many tokens; those of stream k count from 1000·k on.
Dataset mixture(const std::vector<int64_t>& counts, const std::vector<double>& weights) {
  std::vector<TokenStream> streams;
  for (size_t k = 0; k < counts.size(); ++k)
    streams.emplace_back(counting_file(counts[k], 1000 * static_cast<int64_t>(k)));
  return Dataset(std::move(streams), weights);
}

std::vector<int64_t> values(const Tensor& x) { return x.to_vector<int64_t>(); }

// The first id of each row, batch after batch.
std::vector<int64_t> first_ids(Batches& batches, int64_t rows) {
  std::vector<int64_t> first;
  while (std::ssize(first) < rows) {
    const Batch batch = batches.next();
    const auto ids = values(batch.ids);
    for (size_t k = 0; k < ids.size(); k += static_cast<size_t>(batch.ids.size(1))) first.push_back(ids[k]);
  }
  first.resize(static_cast<size_t>(rows));
  return first;
}

// ---- Windows

TEST(WindowsTest, TargetsFollowTheirInputsAndTheLastWindowIsMaskedWhereTheTextEnds) {
  const Dataset data = counting_tokens(9);
  const Windows windows(data, 3);
  ASSERT_EQ(windows.size(), 3);
  const Batch batch = windows.read(1, 2);
  EXPECT_EQ(batch.ids.shape(), Shape({2, 3}));
  EXPECT_THAT(values(batch.ids), ElementsAre(3, 4, 5, 6, 7, 0));
  EXPECT_THAT(values(batch.targets), ElementsAre(4, 5, 6, 7, 8, kNone));
  EXPECT_FALSE(batch.first_seen.defined());
  EXPECT_EQ(batch.target_tokens, 5);
}

TEST(WindowsTest, AreCountedSoThatNoneIsWithoutATarget) {
  for (const auto& [tokens, windows] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {1, 0}, {2, 1}, {4, 1}, {5, 2}, {7, 2}}) {
    const Dataset data = counting_tokens(tokens);
    EXPECT_EQ(Windows(data, 3).size(), windows) << tokens;
  }
  EXPECT_THROW(Windows(counting_tokens(9), 0), ValueError);
}

TEST(WindowsTest, GoFromStreamToStreamAndNeverAcross) {
  const Dataset data = mixture({6, 4}, {});
  const Windows windows(data, 4);
  ASSERT_EQ(windows.size(), 3);
  EXPECT_EQ(windows.first(1), 2);
  EXPECT_THAT(values(windows.read(0, 3).ids), ElementsAre(0, 1, 2, 3, 4, 0, 0, 0, 1000, 1001, 1002, 0));
  EXPECT_THAT(values(windows.read(0, 3).targets),
              ElementsAre(1, 2, 3, 4, 5, kNone, kNone, kNone, 1001, 1002, 1003, kNone));
  EXPECT_THROW(windows.read(2, 2), ValueError);
  EXPECT_THROW(windows.read(-1, 1), ValueError);
}

// Tokens 0 1 2 | 3 | 4 5 6 7 8 9 in windows of 4: documents are cut as they come.
TEST(WindowsTest, SayWhereTheDocumentOfEachPositionBegins) {
  const Dataset data = documents({{3, 0}, {1, 0}, {6, 0}});
  const Windows windows(data, 4, /*within_documents=*/true);
  ASSERT_EQ(windows.size(), 3);
  const Batch batch = windows.read(0, 3);
  EXPECT_THAT(values(batch.ids), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0));
  EXPECT_THAT(values(batch.targets), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, kNone, kNone, kNone));
  EXPECT_THAT(values(batch.first_seen), ElementsAre(0, 0, 0, 3, 0, 0, 0, 0, 0, 1, 1, 1));
  EXPECT_EQ(batch.target_tokens, 9);
  EXPECT_FALSE(Windows(data, 4).read(0, 1).first_seen.defined());
}

TEST(WindowsTest, OneDocumentSeesAllOfItsRow) {
  const Dataset data = counting_tokens(6);
  EXPECT_THAT(values(Windows(data, 4, /*within_documents=*/true).read(0, 2).first_seen),
              ElementsAre(0, 0, 0, 0, 0, 1, 1, 1));
}

// Prompts 0 1, 6 7 8 and 12; the third document does not fit behind the second, and 11 ends the second.
TEST(WindowsTest, KeepAPromptWithItsCompletionAndLearnTheCompletionAlone) {
  const Dataset data = documents({{6, 2}, {6, 3}, {5, 1}});
  const Windows windows(data, 10, /*within_documents=*/true);
  ASSERT_EQ(windows.size(), 2);
  const Batch batch = windows.read(0, 2);
  EXPECT_THAT(values(batch.ids), ElementsAre(0, 1, 2, 3, 4, 5, 0, 0, 0, 0,  //
                                             6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  EXPECT_THAT(values(batch.targets), ElementsAre(kNone, 2, 3, 4, 5, kNone, kNone, kNone, kNone, kNone,  //
                                                 kNone, kNone, 9, 10, 11, kNone, 13, 14, 15, 16));
  EXPECT_THAT(values(batch.first_seen), ElementsAre(0, 0, 0, 0, 0, 0, 6, 6, 6, 6,  //
                                                    0, 0, 0, 0, 0, 0, 6, 6, 6, 6));
  EXPECT_EQ(batch.target_tokens, 4 + 3 + 4);
}

// A document of 14 in contexts of 5: one window is all prompt, and the end of text alone begins none.
TEST(WindowsTest, ALongDocumentIsCutAndWindowsWithoutATargetAreLeftOut) {
  const Dataset data = documents({{14, 7}, {2, 0}, {4, 2}});
  const Windows windows(data, 5);
  std::vector<std::vector<int64_t>> ids, targets;
  for (int64_t w = 0; w < windows.size(); ++w) {
    ids.push_back(values(windows.read(w, 1).ids));
    targets.push_back(values(windows.read(w, 1).targets));
  }
  EXPECT_THAT(ids, ElementsAre(ElementsAre(5, 6, 7, 8, 9), ElementsAre(10, 11, 12, 13, 14),
                               ElementsAre(16, 17, 18, 0, 0)));
  EXPECT_THAT(targets, ElementsAre(ElementsAre(kNone, 7, 8, 9, 10), ElementsAre(11, 12, 13, 14, 15),
                                   ElementsAre(kNone, 18, 19, kNone, kNone)));
}

TEST(WindowsTest, EveryTokenToLearnIsATargetOnceWhateverTheContext) {
  std::vector<std::pair<int64_t, int64_t>> lengths;
  for (int64_t i = 0; i < 60; ++i) {
    const int64_t tokens = 1 + i * i % 17;
    lengths.emplace_back(tokens, i % 3 == 0 ? 0 : i * 7 % tokens);
  }
  const Dataset data = documents(lengths);
  const DocumentTable& table = *data.streams()[0].documents();
  std::vector<int64_t> expected;
  for (int64_t i = 0; i < table.size(); ++i) {
    for (int64_t t = std::max<int64_t>(table[i].first_target, 1); t < table[i].end; ++t)
      expected.push_back(t);
  }
  for (const int64_t context : {1, 2, 5, 16, 17, 40, 1000}) {
    const Windows windows(data, context, /*within_documents=*/true);
    std::vector<int64_t> learnt;
    for (int64_t w = 0; w < windows.size(); ++w) {
      const Batch batch = windows.read(w, 1);
      const auto ids = values(batch.ids), targets = values(batch.targets), seen = values(batch.first_seen);
      int64_t count = 0;
      for (size_t t = 0; t < targets.size(); ++t) {
        ASSERT_LE(seen[t], static_cast<int64_t>(t));
        if (targets[t] == kNone) continue;
        ++count;
        learnt.push_back(targets[t]);
        ASSERT_EQ(targets[t], ids[t] + 1);
        // The row sees the document from its beginning or from the row's own.
        const DocumentPlace place = table[table.find(ids[t])];
        ASSERT_EQ(ids[static_cast<size_t>(seen[t])], std::max(place.begin, ids[0]));
        // A document that fits is not cut off from its prompt.
        const DocumentPlace owner = table[table.find(targets[t])];
        if (owner.has_prompt() && owner.end - 1 - owner.begin <= context) {
          ASSERT_LE(ids[0], owner.begin);
        }
      }
      ASSERT_GE(count, 1);
      ASSERT_EQ(batch.target_tokens, count);
    }
    EXPECT_EQ(learnt, expected) << context;
  }
}

// ---- Batches

// 23 tokens of context 3 make 8 windows, the last with one target; batches of 3 do not divide an epoch.
TEST(BatchesTest, AnEpochHasEveryTargetOnceInAnOrderOfItsOwn) {
  const Dataset data = counting_tokens(23);
  Batches batches(data, 3, 3, 7);
  ASSERT_EQ(batches.windows(), 8);
  const std::vector<int64_t> rows = first_ids(batches, 24);
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> order(rows.begin() + 8 * epoch, rows.begin() + 8 * epoch + 8);
    orders.insert(order);
    std::sort(order.begin(), order.end());
    EXPECT_THAT(order, ElementsAre(0, 3, 6, 9, 12, 15, 18, 21));
  }
  EXPECT_EQ(orders.size(), 3u);
}

TEST(BatchesTest, TheOrderDependsOnTheSeed) {
  const Dataset data = counting_tokens(301);
  EXPECT_EQ(values(Batches(data, 20, 3, 1).next().ids), values(Batches(data, 20, 3, 1).next().ids));
  EXPECT_NE(values(Batches(data, 20, 3, 1).next().ids), values(Batches(data, 20, 3, 2).next().ids));
}

TEST(BatchesTest, TheOrderIsTheSameOnEveryMachine) {
  // Drawn once and written down here.
  const Dataset data = counting_tokens(23);
  Batches batches(data, 4, 3, 7);
  EXPECT_THAT(first_ids(batches, 16), ElementsAre(18, 0, 15, 6, 3, 21, 9, 12, 3, 9, 6, 21, 0, 18, 15, 12));
}

TEST(BatchesTest, GoesOnFromAnyPosition) {
  for (const std::vector<double>& weights : {std::vector<double>(), {3, 1}}) {
    const Dataset data = mixture({23, 14}, weights);
    Batches batches(data, 3, 3, 7);
    for (int i = 0; i < 20; ++i) {
      Batches resumed(data, 3, 3, 7, batches.position());
      Batch expected = batches.next();
      EXPECT_EQ(values(resumed.next().ids), values(expected.ids)) << i;
      EXPECT_EQ(resumed.position(), batches.position());
    }
  }
}

// 20 and 10 windows by weights 1 and 4: 6 and 24 an epoch.
TEST(BatchesTest, WeightsShareAnEpochAndEveryWindowComesInItsRound) {
  const Dataset data = mixture({61, 31}, {1, 4});
  Batches batches(data, 5, 3, 7);
  ASSERT_EQ(batches.windows(), 30);
  std::map<int64_t, int> times;
  for (int epoch = 0; epoch < 10; ++epoch) {
    const std::vector<int64_t> rows = first_ids(batches, 30);
    EXPECT_EQ(std::ranges::count_if(rows, [](int64_t id) { return id < 1000; }), 6);
    EXPECT_FALSE(std::ranges::is_sorted(rows));
    for (const int64_t id : rows) ++times[id];
  }
  ASSERT_EQ(times.size(), 30u);
  // After 60 draws from 20 windows each came 3 times, after 240 from 10 each 24 times.
  for (const auto& [id, count] : times) EXPECT_EQ(count, id < 1000 ? 3 : 24) << id;
}

TEST(BatchesTest, ASourceOfLittleWeightStillComes) {
  const Dataset data = mixture({61, 31}, {1, 1e-9});
  Batches batches(data, 1, 3, 7);
  const std::vector<int64_t> rows = first_ids(batches, batches.windows());
  EXPECT_EQ(std::ranges::count_if(rows, [](int64_t id) { return id >= 1000; }), 1);
}

TEST(BatchesTest, TooLittleTextIsAValueErrorThatSaysWhatToDo) {
  EXPECT_THAT([] { Batches(counting_tokens(3), 1, 3, 0); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr("3 tokens"), HasSubstr("shorter context"))));
  EXPECT_THAT([] { Batches(counting_tokens(23), 9, 3, 0); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr("batch of 9"), HasSubstr("1 to 8"))));
  EXPECT_THAT([] { Batches(counting_tokens(23), 8, 3, 0, {.epoch = 0, .window = 9}); },
              ThrowsMessage<ValueError>(HasSubstr("position 9")));
  EXPECT_THAT([] { Batches(counting_tokens(23), 8, 3, 0, {.epoch = -1, .window = 0}); },
              ThrowsMessage<ValueError>(HasSubstr("epoch is -1")));
}

}  // namespace
}  // namespace tapehead
