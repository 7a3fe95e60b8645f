// Memory is counted where it is allocated: live and peak bytes, by device and by scope.
//
// A scope is a name that a thread enters; scopes nest, and an allocation counts in the innermost one and in
// all around it, until freed (by any thread). Bytes are those that tensors ask for; empty ones take none.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "tapehead/core/device.h"

namespace tapehead {

struct MemoryStats {
  int64_t live_bytes = 0;
  int64_t peak_bytes = 0;   ///< the most live at once since the scope was first entered or last reset
  int64_t allocations = 0;  ///< how many allocations were made, ever
  bool operator==(const MemoryStats&) const = default;
};

class MemoryCounter;

/// Enters the scope `name` inside the current one, until destroyed. Entering a name again continues its
/// counts. Destroy scopes on the thread that made them, innermost first.
class MemoryScope {
 public:
  explicit MemoryScope(std::string_view name);
  /// Enters a scope again, wherever this thread is: one that here() gave.
  explicit MemoryScope(MemoryCounter* place);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

  /// The scope that this thread is in. Valid for the rest of the process, on any thread.
  static MemoryCounter* here();

 private:
  MemoryCounter* outer_;
};

/// Counts of the scope at `path` ("" is the whole process, "train/head" a scope within a scope) on `device`.
/// All zero for a scope that was never entered.
MemoryStats memory_stats(Device device, std::string_view path = "");

/// Sets the peak of the scope at `path` to what is live now.
void reset_peak(Device device, std::string_view path = "");

/// Device memory that counts itself; used by Storage alone. Empty blocks hold no memory.
class MemoryBlock {
 public:
  MemoryBlock(Device device, int64_t bytes);
  ~MemoryBlock();
  MemoryBlock(const MemoryBlock&) = delete;
  MemoryBlock& operator=(const MemoryBlock&) = delete;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  Device device_;
  int64_t bytes_;
  MemoryCounter* counter_;
  void* data_ = nullptr;
};

}  // namespace tapehead
