// The emulated device as a test sees it: what it is, how much memory it has, and what went wrong on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cuda_emulator {

struct Settings {
  size_t memory_bytes = size_t{1} << 30;
  int devices = 1;
  int driver_version = 13000;  // as cudaDriverGetVersion gives it; 0: none is installed
  int runtime_version = 13000;
  int capability_major = 9, capability_minor = 0;
  bool busy = false;         // another process holds the device for itself
  double product_error = 0;  // cuBLAS's products are larger by this share: a device that computes wrongly
  uint64_t seed = 1;         // of the order of threads and blocks
  bool blocking = false;     // as CUDA_LAUNCH_BLOCKING=1: a launch returns its own failure
};

/// Ends what was wrong, takes new settings, and forgets all memory but what is live.
void reset(const Settings& settings = {});

/// What the last kernel that failed did wrong; empty if none did.
std::string last_problem();
/// Bytes of device memory that are allocated.
size_t memory_in_use();
/// Launches so far.
int64_t launches();
/// How often the host has waited for work that it had asked for.
int64_t waits();

}  // namespace cuda_emulator
