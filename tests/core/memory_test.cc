#include "tapehead/core/memory.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <thread>

#include "tapehead/core/view.h"

namespace tapehead {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr Device kCpu{};

Tensor bytes(int64_t n) { return Tensor({n / 4}, DType::f32); }

// Counts live as long as the process, so every test has scopes of its own name.

TEST(Memory, ATensorsBytesAreLiveUntilItsLastHandleGoes) {
  const MemoryScope scope("lifetime");
  Tensor x = bytes(400);
  Tensor view = slice(x, 0, 0, 1);
  EXPECT_EQ(memory_stats(kCpu, "lifetime"),
            (MemoryStats{.live_bytes = 400, .peak_bytes = 400, .allocations = 1}));
  x = {};
  EXPECT_EQ(memory_stats(kCpu, "lifetime").live_bytes, 400) << "the view has them";
  view = {};
  EXPECT_EQ(memory_stats(kCpu, "lifetime"),
            (MemoryStats{.live_bytes = 0, .peak_bytes = 400, .allocations = 1}));
}

TEST(Memory, EmptyTensorsTakeNone) {
  const MemoryScope scope("empty");
  const Tensor x = Tensor::zeros({0, 5});
  EXPECT_EQ(memory_stats(kCpu, "empty"), MemoryStats{});
}

TEST(Memory, ForeignBytesAreNotCounted) {
  const MemoryScope scope("foreign");
  std::vector<float> mine(10);
  const Tensor x = Tensor::over(std::make_shared<Storage>(nullptr, mine.data(), 40), {10}, DType::f32);
  EXPECT_EQ(memory_stats(kCpu, "foreign"), MemoryStats{});
}

TEST(Memory, AnInnerScopeCountsInAllAroundIt) {
  const MemoryStats before = memory_stats(kCpu);
  Tensor kept;
  {
    const MemoryScope outer("outer");
    const Tensor a = bytes(100);
    {
      const MemoryScope inner("inner");
      kept = bytes(1000);
      EXPECT_EQ(memory_stats(kCpu, "outer/inner").live_bytes, 1000);
      EXPECT_EQ(memory_stats(kCpu, "outer").live_bytes, 1100);
    }
    const Tensor b = bytes(8);
    EXPECT_EQ(memory_stats(kCpu, "outer/inner").allocations, 1) << "its scope was left";
    EXPECT_EQ(memory_stats(kCpu).live_bytes, before.live_bytes + 1108);
  }
  EXPECT_EQ(memory_stats(kCpu, "outer").live_bytes, 1000) << "freed where it was charged, whenever that is";
  kept = {};
  EXPECT_EQ(memory_stats(kCpu, "outer").live_bytes, 0);
  EXPECT_EQ(memory_stats(kCpu, "outer").peak_bytes, 1108);
  EXPECT_EQ(memory_stats(kCpu, "inner"), MemoryStats{}) << "a path begins at the process";
  EXPECT_EQ(memory_stats(kCpu).live_bytes, before.live_bytes);
}

TEST(Memory, AScopeEnteredAgainContinuesItsCounts) {
  for (int i = 1; i <= 3; ++i) {
    const MemoryScope scope("again");
    const Tensor x = bytes(100);
    EXPECT_EQ(memory_stats(kCpu, "again"),
              (MemoryStats{.live_bytes = 100, .peak_bytes = 100, .allocations = i}));
  }
}

TEST(Memory, PeakIsOfWhatWasLiveAtOnceAndCanBeReset) {
  const MemoryScope scope("peak");
  const Tensor kept = bytes(100);
  for (int i = 0; i < 5; ++i) bytes(1000);
  EXPECT_EQ(memory_stats(kCpu, "peak").peak_bytes, 1100);
  reset_peak(kCpu, "peak");
  EXPECT_EQ(memory_stats(kCpu, "peak"),
            (MemoryStats{.live_bytes = 100, .peak_bytes = 100, .allocations = 6}));
  bytes(20);
  EXPECT_EQ(memory_stats(kCpu, "peak").peak_bytes, 120);
  reset_peak(kCpu, "no such scope");
}

TEST(Memory, ScopesAreOfOneThread) {
  const MemoryScope scope("here");
  std::thread([] {
    const Tensor x = bytes(100);
    EXPECT_EQ(memory_stats(kCpu, "here").live_bytes, 0);
    const MemoryScope there("there");
    const Tensor y = bytes(100);
    EXPECT_EQ(memory_stats(kCpu, "there").live_bytes, 100);
    EXPECT_EQ(memory_stats(kCpu, "here/there"), MemoryStats{});
  }).join();
}

TEST(Memory, AnotherThreadMayFree) {
  const MemoryScope scope("handed over");
  Tensor x = bytes(100);
  std::thread([y = std::move(x)]() mutable {
    const MemoryScope other("elsewhere");
    y = {};
  }).join();
  EXPECT_EQ(memory_stats(kCpu, "handed over").live_bytes, 0);
  EXPECT_EQ(memory_stats(kCpu, "elsewhere"), MemoryStats{});
}

TEST(Memory, ThreadsInOneScopeLoseNoCount) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      const MemoryScope scope("crowd");
      for (int k = 0; k < 1000; ++k) bytes(40);
    });
  }
  for (std::thread& t : threads) t.join();
  const MemoryStats stats = memory_stats(kCpu, "crowd");
  EXPECT_EQ(stats.live_bytes, 0);
  EXPECT_EQ(stats.allocations, 4000);
  EXPECT_GE(stats.peak_bytes, 40);
  EXPECT_LE(stats.peak_bytes, 160);
}

TEST(Memory, NamesAreNoPaths) {
  for (const char* name : {"", "a/b"}) {
    EXPECT_THAT([&] { MemoryScope scope(name); },
                ThrowsMessage<ValueError>(HasSubstr(fmt::format("\"{}\"", name))));
  }
  EXPECT_EQ(memory_stats({}, "a"), MemoryStats{});
}

}  // namespace
}  // namespace tapehead
