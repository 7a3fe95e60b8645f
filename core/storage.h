// The memory behind tensors, shared by all their views; its version counter catches in-place changes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "tapehead/core/memory.h"

namespace tapehead {

/// A run of bytes on one device. Thread-safe but for the bytes themselves.
class Storage {
 public:
  /// Counted memory of its own, uninitialised.
  Storage(Device device, int64_t bytes) : block_(device, bytes), data_(block_.data()), bytes_(bytes) {}

  /// Memory that `owner` keeps alive (a mapped file, the caller's array, a kernel's scratch); not counted.
  Storage(std::shared_ptr<void> owner, void* data, int64_t bytes, Device device = {})
      : block_(device, 0), owner_(std::move(owner)), data_(data), bytes_(bytes) {}

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return block_.device(); }
  /// Whether others may know these bytes: they were not allocated here.
  bool is_foreign() const { return owner_ != nullptr; }

  /// Counts the writes, views' included. A tensor saved for backward remembers it, and backward compares.
  int64_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() { version_.fetch_add(1, std::memory_order_relaxed); }

 private:
  MemoryBlock block_;
  std::shared_ptr<void> owner_;
  void* data_;
  int64_t bytes_;
  std::atomic<int64_t> version_ = 0;
};

}  // namespace tapehead
