#include <fmt/format.h>

#include "tapehead/backends/cuda/device_memory.h"
#include "tapehead/core/error.h"

namespace tapehead {

static constexpr size_t kLargest = 5;  // sizes that an error lists

DeviceMemory::DeviceMemory(Stream& stream)
    : stream_(stream),
      cache_({.take = [&stream](int64_t bytes) -> void* {
                void* memory = nullptr;
                const cudaError_t status = cudaMalloc(&memory, static_cast<size_t>(bytes));
                if (status == cudaErrorMemoryAllocation) {
                  cudaGetLastError();  // or the next launch would be told
                  return nullptr;
                }
                stream.check("cudaMalloc", status);
                return memory;
              },
              // After a failed kernel this fails too, and there is nothing that it would be told for.
              .give_back = [](void* memory) { (void)cudaFree(memory); }}) {}

void* DeviceMemory::allocate(int64_t bytes) {
  void* memory = cache_.allocate(bytes);
  const std::lock_guard lock(mutex_);
  if (!memory) {
    size_t free = 0, total = 0;
    stream_.check("cudaMemGetInfo", cudaMemGetInfo(&free, &total));
    int64_t live = 0;
    for (const auto& [size, count] : live_) live += size * count;
    fail<OutOfMemoryError>(
        "out of memory: {} bytes were wanted on cuda, {} are live there, the largest buffers {}; the device "
        "has {} of {} "
        "bytes free",
        bytes, live, largest_buffers(), free, total);
  }
  ++live_[bytes];
  return memory;
}

void DeviceMemory::deallocate(void* memory, int64_t bytes) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = live_.find(bytes); found != live_.end() && --found->second == 0)
      live_.erase(found);
  }
  cache_.deallocate(memory, bytes);
}

int64_t DeviceMemory::available() const {
  size_t free = 0, total = 0;
  stream_.check("cudaMemGetInfo", cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free) + cache_.kept_bytes();
}

std::string DeviceMemory::largest_buffers() const {
  std::string text;
  size_t listed = 0;
  for (auto size = live_.rbegin(); size != live_.rend() && listed < kLargest; ++size, ++listed) {
    text += fmt::format("{}{}{}", listed > 0 ? ", " : "", size->first,
                        size->second > 1 ? fmt::format(" ({} times)", size->second) : "");
  }
  return text.empty() ? "none" : text;
}

}  // namespace tapehead
