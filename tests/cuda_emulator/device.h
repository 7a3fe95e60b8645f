// The emulated device's memory and its state between calls.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tapehead/tests/cuda_emulator/block.h"
#include "tapehead/tests/cuda_emulator/emulator.h"

namespace cuda_emulator {

/// Memory that only kernels and CUDA's calls may touch: the host's own reads and writes fault, under
/// AddressSanitizer too, which also sees accesses between allocations.
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

/// What a stream was asked for while it recorded.
struct Recording {
  cudaStreamCaptureMode mode;
  std::vector<std::function<cudaError_t()>> work = {};
  bool valid = true;  // nothing was asked for that cannot be recorded
};

struct Device {
  std::recursive_mutex mutex;
  Settings settings;
  Memory memory;
  BlockRunner blocks;
  Random random{1};
  std::map<const void*, int> shared_limits;  // of kernels that were allowed more
  cudaError_t sticky = cudaSuccess;          // a kernel's failure
  cudaError_t last = cudaSuccess;            // for cudaGetLastError
  std::string problem;
  int64_t launches = 0, waits = 0;
  std::unique_ptr<Recording> recording;
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

/// Does `work` on the device's memory, or records it, where the stream does. What was recorded is done by
/// each launch of its graph.
cudaError_t submit(std::function<cudaError_t()> work);

/// For calls that a recording stream does not allow: the error that CUDA gives, which makes the recording
/// worthless. Those that are unsafe alone, as cudaMalloc, are allowed to a thread in relaxed mode.
cudaError_t refuse_while_recording(bool unsafe_alone);

}  // namespace cuda_emulator
