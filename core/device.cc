#include "tapehead/core/device.h"

namespace tapehead {

static thread_local Device current;

Device default_device() { return current; }

DeviceGuard::DeviceGuard(Device device) : outer_(current) { current = device; }

DeviceGuard::~DeviceGuard() { current = outer_; }

std::string_view name(Device device) { return device.kind == Device::cpu ? "cpu" : "cuda"; }

Device parse_device(std::string_view text) {
  if (text == "cpu") return {Device::cpu};
  if (text == "cuda") return {Device::cuda};
  fail<ValueError>("unknown device \"{}\": it is cpu or cuda", text);
}

std::unique_ptr<CapturedWork> DeviceRuntime::capture(const std::function<void()>&,
                                                     std::span<const uint64_t>) {
  fail<ValueError>("[capture] the cpu records nothing: call the work itself");
}

}  // namespace tapehead
