// The emulated device's memory and its state between calls.
#pragma once

#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <string>

#include "tapehead/tests/cuda_emulator/block.h"
#include "tapehead/tests/cuda_emulator/emulator.h"

namespace cuda_emulator {

/// Memory that only kernels and CUDA's calls may touch: the host's own reads and writes fault, under AddressSanitizer too,
/// which also sees accesses between allocations.
class Memory {
 public:
  void* allocate(size_t bytes, size_t limit);
  /// False if `memory` was not allocated.
  bool free(void* memory);
  /// Whether [p, p + bytes) lies in one allocation.
  bool contains(const void* p, size_t bytes) const;
  size_t in_use() const { return in_use_; }

  /// Opens or closes all of it.
  void open();
  void close();

 private:
  std::map<char*, size_t> blocks_;  // by address
  size_t in_use_ = 0;
  char* arena_ = nullptr;
  size_t reach_ = 0;  // of the arena, so far
};

struct Device {
  std::recursive_mutex mutex;
  Settings settings;
  Memory memory;
  BlockRunner blocks;
  std::minstd_rand random{1};
  std::map<const void*, int> shared_limits;  // of kernels that were allowed more
  cudaError_t sticky = cudaSuccess;          // a kernel's failure
  cudaError_t last = cudaSuccess;            // for cudaGetLastError
  std::string problem;
  int64_t launches = 0, waits = 0;
  bool busy = false;  // as a real device may still be: nobody has waited since something was asked of it

  /// The host waits.
  void wait() {
    waits += busy;
    busy = false;
  }
  /// Remembers a call's status, as cudaGetLastError tells it, and returns it; a sticky error takes its place.
  cudaError_t finish(cudaError_t status);
};

Device& device();

/// While it lives, no other thread changes the device.
class Lock {
 public:
  Lock() : lock_(device().mutex) {}

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

/// A Lock with which this thread may touch device memory.
class Access : Lock {
 public:
  Access() { device().memory.open(); }
  ~Access() { device().memory.close(); }
};

}  // namespace cuda_emulator
