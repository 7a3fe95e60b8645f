#include <fmt/format.h>

#include "tapehead/backends/cuda/device_memory.h"
#include "tapehead/core/error.h"

namespace tapehead {

static constexpr size_t kLargest = 5;  // sizes that an error lists

// ---- Of recorded work

CapturedMemory::~CapturedMemory() {
  for (const auto& [memory, size] : held_) cache_.deallocate(memory, size);
}

void* CapturedMemory::allocate(int64_t bytes) {
  const int64_t size = MemoryCache::block_size(bytes);
  std::vector<void*>& unused = unused_[size];
  if (!unused.empty()) {
    void* memory = unused.back();
    unused.pop_back();
    return memory;
  }
  held_.emplace_back(nullptr, size);
  void* memory = cache_.allocate(size);
  if (memory) {
    held_.back().first = memory;
  } else {
    held_.pop_back();
  }
  return memory;
}

// Without memory for the lists nothing is lost but the use that could be made of it.
void CapturedMemory::deallocate(void* memory, int64_t bytes) noexcept {
  try {
    unused_[MemoryCache::block_size(bytes)].push_back(memory);
  } catch (const std::bad_alloc&) {
  }
}

void CapturedMemory::hold(void* memory, int64_t bytes) noexcept {
  try {
    held_.emplace_back(memory, bytes);
  } catch (const std::bad_alloc&) {
  }
}

// ---- Of all

DeviceMemory::DeviceMemory(Stream& stream)
    : stream_(stream),
      cache_({.take = [this](int64_t bytes) { return take(bytes); },
              .give_back = [this](void* memory) { give_back(memory); }}) {}

void* DeviceMemory::take(int64_t bytes) {
  void* memory = nullptr;
  const CaptureRelaxation relaxation;
  const cudaError_t status = cudaMalloc(&memory, static_cast<size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // or the next launch would be told
    return nullptr;
  }
  stream_.check("cudaMalloc", status);
  return memory;
}

void DeviceMemory::give_back(void* memory) {
  if (stream_.is_capturing()) return to_free_.push_back(memory);  // CUDA would wait for the device
  // After a failed kernel this fails too, and there is nothing that it would be told for.
  (void)cudaFree(memory);
}

void DeviceMemory::begin_capture() {
  const std::lock_guard lock(mutex_);
  recording_ = std::make_shared<CapturedMemory>(cache_);
}

std::shared_ptr<CapturedMemory> DeviceMemory::end_capture() {
  const std::lock_guard lock(mutex_);
  for (void* memory : std::exchange(to_free_, {})) (void)cudaFree(memory);
  return std::exchange(recording_, nullptr);
}

void* DeviceMemory::allocate(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  void* memory = recording_ ? recording_->allocate(bytes) : cache_.allocate(bytes);
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
  if (recording_) captured_.emplace(memory, recording_);
  ++live_[bytes];
  return memory;
}

void DeviceMemory::deallocate(void* memory, int64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  if (const auto found = live_.find(bytes); found != live_.end() && --found->second == 0) live_.erase(found);
  if (const auto found = captured_.find(memory); found != captured_.end()) {
    found->second->deallocate(memory, bytes);
    captured_.erase(found);
  } else if (recording_) {
    recording_->hold(memory, bytes);
  } else {
    cache_.deallocate(memory, bytes);
  }
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
