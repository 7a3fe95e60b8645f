// Device memory, kept for the next tensor when one is freed, and who holds how much of it when there is no more.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "tapehead/backends/cuda/stream.h"
#include "tapehead/backends/memory_cache.h"

namespace tapehead {

/// Thread-safe.
class DeviceMemory {
 public:
  explicit DeviceMemory(Stream& stream);

  /// At least `bytes` (> 0), aligned to 256, uninitialised. Throws OutOfMemoryError that tells what was wanted, what is live,
  /// the largest live buffers, and what the device has; nothing is lost then.
  void* allocate(int64_t bytes);
  void deallocate(void* memory, int64_t bytes) noexcept;

  /// How often CUDA was asked.
  int64_t system_allocations() const { return cache_.system_allocations(); }
  /// Bytes that the device has left, and those that are kept.
  int64_t available() const;

 private:
  std::string largest_buffers() const;

  Stream& stream_;
  MemoryCache cache_;
  mutable std::mutex mutex_;
  std::map<int64_t, int64_t> live_;  // how many buffers of each size are live
};

}  // namespace tapehead
