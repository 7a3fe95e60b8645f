// Device memory, kept for the next tensor when one is freed,
// and who holds how much of it when there is no more.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tapehead/backends/cuda/stream.h"
#include "tapehead/backends/memory_cache.h"

namespace tapehead {

/// The memory of recorded work, which does the same to the same addresses each time: what it takes goes back
/// to the cache when this ends, and until then from one tensor of the recording to the next.
class CapturedMemory {
 public:
  explicit CapturedMemory(MemoryCache& cache) : cache_(cache) {}
  ~CapturedMemory();
  CapturedMemory(const CapturedMemory&) = delete;
  CapturedMemory& operator=(const CapturedMemory&) = delete;

  /// As MemoryCache's.
  void* allocate(int64_t bytes);
  void deallocate(void* memory, int64_t bytes) noexcept;
  /// Takes what the cache gave before the recording: it was freed there, and may be read.
  void hold(void* memory, int64_t bytes) noexcept;

 private:
  MemoryCache& cache_;
  std::vector<std::pair<void*, int64_t>> held_;   // with their sizes
  std::map<int64_t, std::vector<void*>> unused_;  // of them, by size
};

/// Thread-safe.
class DeviceMemory {
 public:
  explicit DeviceMemory(Stream& stream);

  /// At least `bytes` (> 0), aligned to 256, uninitialised. Throws OutOfMemoryError that tells what was
  /// wanted, what is live, the largest live buffers, and what the device has; nothing is lost then.
  void* allocate(int64_t bytes);
  void deallocate(void* memory, int64_t bytes) noexcept;

  /// From now until end_capture(), allocate() gives memory of its own to what is recorded, and nothing is
  /// freed.
  void begin_capture();
  /// That memory: it stays reserved while this or a tensor in it lives.
  std::shared_ptr<CapturedMemory> end_capture();

  /// How often CUDA was asked.
  int64_t system_allocations() const { return cache_.system_allocations(); }
  /// Bytes that the device has left, and those that are kept.
  int64_t available() const;

 private:
  void* take(int64_t bytes);
  void give_back(void* memory);
  std::string largest_buffers() const;

  Stream& stream_;
  MemoryCache cache_;
  mutable std::mutex mutex_;
  std::map<int64_t, int64_t> live_;  // how many buffers of each size are live
  std::shared_ptr<CapturedMemory> recording_;
  std::unordered_map<void*, std::shared_ptr<CapturedMemory>> captured_;  // live buffers of recordings
  std::vector<void*> to_free_;                                           // once nothing is recorded
};

}  // namespace tapehead
