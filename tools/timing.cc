#include "tapehead/tools/timing.h"

#include "tapehead/core/device.h"
#include "tapehead/core/stopwatch.h"

namespace tapehead {

double seconds_of(const std::function<void()>& work) {
  DeviceRuntime& device = device_runtime(default_device());
  device.synchronize();
  const Stopwatch stopwatch;
  work();
  device.synchronize();
  return stopwatch.seconds();
}

}  // namespace tapehead
