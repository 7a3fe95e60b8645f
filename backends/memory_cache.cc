#include "tapehead/backends/memory_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>

namespace tapehead {

static constexpr int64_t kAlignment = 64;        // a cache line, and the widest vector
static constexpr int64_t kHugePage = 2 << 20;    // x86-64's; fewer of them to look up
static constexpr int64_t kStepsPerDoubling = 8;  // sizes that are told apart: 12.5 % is wasted at most

int64_t MemoryCache::block_size(int64_t bytes) {
  const auto floor = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes)));
  // What is not kept is as large as it was asked for: a sanitizer sees the first byte beyond.
  const int64_t step = kKeeps ? std::max(kAlignment, floor / kStepsPerDoubling) : 1;
  return (bytes + step - 1) / step * step;
}

// What may be held in all: somewhat more than the peak, as sizes of different moments do not fit each other.
static int64_t most_held(int64_t peak) { return peak + peak / 4 + (1 << 20); }

static void* take_host_memory(int64_t size) {
  const bool large = size >= 2 * kHugePage;
  const auto bytes = static_cast<size_t>(size);
  void* memory = nullptr;  // and so it stays if the system refuses
  if (posix_memalign(&memory, static_cast<size_t>(large ? kHugePage : kAlignment), bytes) != 0)
    return nullptr;
  if (large) madvise(memory, bytes, MADV_HUGEPAGE);  // a wish: refused, pages stay small
  return memory;
}

MemorySource host_memory() { return {.take = take_host_memory, .give_back = std::free}; }

void* MemoryCache::allocate(int64_t bytes) {
  if (bytes > std::numeric_limits<int64_t>::max() / 4) return nullptr;  // sums of sizes would overflow
  const int64_t size = block_size(bytes);
  const std::lock_guard lock(mutex_);
  void* memory = nullptr;
  if (const auto found = kept_.find(size); found != kept_.end()) {
    memory = found->second.back();
    found->second.pop_back();
    if (found->second.empty()) kept_.erase(found);
    kept_bytes_ -= size;
  } else {
    evict(live_ + size + kept_bytes_ - most_held(std::max(peak_, live_ + size)));
    ++system_allocations_;
    memory = source_.take(size);
    if (!memory) {
      evict(kept_bytes_);
      memory = source_.take(size);
    }
    if (!memory) return nullptr;
  }
  live_ += size;
  peak_ = std::max(peak_, live_);
  return memory;
}

void MemoryCache::deallocate(void* memory, int64_t bytes) noexcept {
  const int64_t size = block_size(bytes);
  const std::lock_guard lock(mutex_);
  live_ -= size;
  if (!kKeeps) return source_.give_back(memory);
  try {
    kept_[size].push_back(memory);
    kept_bytes_ += size;
  } catch (const std::bad_alloc&) {
    if (const auto found = kept_.find(size); found != kept_.end() && found->second.empty())
      kept_.erase(found);
    source_.give_back(memory);
  }
}

void MemoryCache::release() noexcept {
  const std::lock_guard lock(mutex_);
  evict(kept_bytes_);
}

// The largest first, until `bytes` went back or nothing is left.
void MemoryCache::evict(int64_t bytes) noexcept {
  while (bytes > 0 && !kept_.empty()) {
    const auto largest = std::prev(kept_.end());
    source_.give_back(largest->second.back());
    largest->second.pop_back();
    bytes -= largest->first;
    kept_bytes_ -= largest->first;
    if (largest->second.empty()) kept_.erase(largest);
  }
}

int64_t MemoryCache::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

int64_t MemoryCache::system_allocations() const {
  const std::lock_guard lock(mutex_);
  return system_allocations_;
}

}  // namespace tapehead
