#include "tapehead/backends/backend.h"

#include "tapehead/backends/cpu/cpu_backend.h"

namespace tapehead {

Backend& backend(Device device) {
  check<ValueError>(device.kind == Device::cpu, "this build has no backend for device {}: only for cpu",
                    device);
  return cpu_backend();
}

DeviceRuntime& device_runtime(Device device) { return backend(device); }

}  // namespace tapehead
