// Memory from the system, kept for the next tensor when one is freed.
//
// The system hands memory out page by page and clears each first: for large tensors that costs as much as
// writing them. A training step frees what the next one asks for again, so after the first steps the
// system is not asked at all.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace tapehead {

/// Where memory comes from when nothing that is kept fits.
struct MemorySource {
  std::function<void*(int64_t bytes)> take;  ///< null if there is none; may throw
  std::function<void(void*)> give_back;
};

/// The host's: aligned to 64, in huge pages where that pays.
MemorySource host_memory();

/// Thread-safe. What is kept and what is live are together at most a quarter and 1 MiB more than the most
/// that was ever live at once, both in blocks, which are up to an eighth larger than what was asked for,
/// and 64 bytes at least.
class MemoryCache {
 public:
  /// Under AddressSanitizer nothing is kept and blocks are as small as can be, so that it sees
  /// uses of freed memory.
#if defined(__SANITIZE_ADDRESS__)
  static constexpr bool kKeeps = false;
#elif defined(__has_feature)
  static constexpr bool kKeeps = !__has_feature(address_sanitizer);
#else
  static constexpr bool kKeeps = true;
#endif

  explicit MemoryCache(MemorySource source = host_memory()) : source_(std::move(source)) {}
  ~MemoryCache() { release(); }

  /// At least `bytes` (> 0), aligned as the source does, uninitialised; null if it has none,
  /// even after release().
  void* allocate(int64_t bytes);
  /// Takes back what allocate(bytes) gave.
  void deallocate(void* memory, int64_t bytes) noexcept;
  /// Gives all that is kept back to the system.
  void release() noexcept;

  /// What a block for `bytes` really has, so that tensors of about one size can follow each other.
  static int64_t block_size(int64_t bytes);

  /// How often the source was asked.
  int64_t system_allocations() const;
  /// What is kept, and may be given out or back.
  int64_t kept_bytes() const;

 private:
  void evict(int64_t bytes) noexcept;

  const MemorySource source_;
  mutable std::mutex mutex_;
  std::map<int64_t, std::vector<void*>> kept_;  // by size
  int64_t live_ = 0, peak_ = 0, kept_bytes_ = 0;
  int64_t system_allocations_ = 0;
};

}  // namespace tapehead
