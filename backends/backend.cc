#include "tapehead/backends/backend.h"

#include "tapehead/backends/cpu/cpu_backend.h"

namespace tapehead {

// Null unless the program links //backends/cuda, as --config=cuda does, or the one for an
// emulated device, as tests do.
[[gnu::weak]] Backend& linked_cuda_backend();

Backend& backend(Device device) {
  if (device.kind == Device::cpu) return cpu_backend();
  check<ValueError>(
      linked_cuda_backend != nullptr,
      "this build has no backend for device {}: build with --config=cuda, which takes NVIDIA's CUDA toolkit "
      "(CUDA_HOME, or /usr/local/cuda), or use device cpu",
      device);
  return linked_cuda_backend();
}

DeviceRuntime& device_runtime(Device device) { return backend(device); }

}  // namespace tapehead
