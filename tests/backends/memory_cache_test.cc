// Memory is kept when a tensor is freed: who gets it, how much is kept, and when it goes back.
#include "tapehead/backends/memory_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <thread>
#include <vector>

namespace tapehead {
namespace {

constexpr bool kKeeps = MemoryCache::kKeeps;

TEST(MemoryCache, GivesFreedMemoryToTheNextOfAboutItsSize) {
  MemoryCache cache;
  void* first = cache.allocate(1'000'000);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
  std::memset(first, 1, 1'000'000);
  cache.deallocate(first, 1'000'000);
  void* second = cache.allocate(990'000);
  std::memset(second, 2, 990'000);
  if (kKeeps) {
    EXPECT_EQ(second, first);
  }
  EXPECT_EQ(cache.system_allocations(), kKeeps ? 1 : 2);
  void* other = cache.allocate(500'000);  // half would be wasted
  EXPECT_NE(other, first);
  cache.deallocate(second, 990'000);
  cache.deallocate(other, 500'000);
}

TEST(MemoryCache, EverySizeHasRoomForItself) {
  MemoryCache cache;
  for (int64_t bytes = 1; bytes < 40'000'000; bytes = bytes * 5 / 4 + 1) {
    void* memory = cache.allocate(bytes);
    ASSERT_NE(memory, nullptr) << bytes;
    std::memset(memory, 7, static_cast<size_t>(bytes));
    cache.deallocate(memory, bytes);
  }
}

// Hazard: a cache that keeps whatever was ever freed would double the memory of a run whose sizes change.
TEST(MemoryCache, HoldsLittleMoreThanWasLiveAtOnce) {
  if (!kKeeps) GTEST_SKIP() << "under AddressSanitizer nothing is kept";
  MemoryCache cache;
  constexpr int64_t kMega = 1 << 20;
  void* ten = cache.allocate(10 * kMega);
  cache.deallocate(ten, 10 * kMega);
  // 10 MiB were live at most, so beside 6 new ones they cannot be kept.
  void* six = cache.allocate(6 * kMega);
  EXPECT_EQ(cache.system_allocations(), 2);
  cache.deallocate(six, 6 * kMega);
  void* again = cache.allocate(10 * kMega);
  EXPECT_EQ(cache.system_allocations(), 3);
  cache.deallocate(again, 10 * kMega);
  // While both were live at once, both may be kept.
  void* a = cache.allocate(10 * kMega);
  void* b = cache.allocate(6 * kMega);
  cache.deallocate(a, 10 * kMega);
  cache.deallocate(b, 6 * kMega);
  const int64_t before = cache.system_allocations();
  a = cache.allocate(10 * kMega);
  b = cache.allocate(6 * kMega);
  EXPECT_EQ(cache.system_allocations(), before);
  cache.deallocate(a, 10 * kMega);
  cache.deallocate(b, 6 * kMega);
  cache.release();
  cache.deallocate(cache.allocate(6 * kMega), 6 * kMega);
  EXPECT_EQ(cache.system_allocations(), before + 1);
}

TEST(MemoryCache, WhatTheSystemRefusesIsNull) {
  MemoryCache cache;
  cache.deallocate(cache.allocate(1000), 1000);
  for (const int bits : {56, 60, 62}) EXPECT_EQ(cache.allocate(int64_t{1} << bits), nullptr);
  EXPECT_EQ(cache.allocate(std::numeric_limits<int64_t>::max()), nullptr);
  void* after = cache.allocate(1000);
  EXPECT_NE(after, nullptr);
  cache.deallocate(after, 1000);
}

TEST(MemoryCache, ThreadsShareIt) {
  MemoryCache cache;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&cache, t] {
      for (int i = 0; i < 2000; ++i) {
        const int64_t bytes = 64 * (1 + (i * 7 + t) % 50);
        auto* memory = static_cast<char*>(cache.allocate(bytes));
        memory[0] = memory[bytes - 1] = static_cast<char>(t);
        ASSERT_EQ(memory[0], static_cast<char>(t));
        cache.deallocate(memory, bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tapehead
