#include "tapehead/core/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace tapehead {

static thread_local Device current;

Device default_device() { return current; }

DeviceGuard::DeviceGuard(Device device) : outer_(current) { current = device; }

DeviceGuard::~DeviceGuard() { current = outer_; }

static constexpr std::array<std::string_view, Device::kKinds> kNames = {"cpu", "cuda"};

std::string_view name(Device device) { return kNames.at(device.kind); }

Device parse_device(std::string_view text) {
  const auto found = std::find(kNames.begin(), kNames.end(), text);
  check<ValueError>(found != kNames.end(), "unknown device \"{}\": it is {}", text,
                    fmt::join(kNames, " or "));
  return {static_cast<Device::Kind>(found - kNames.begin())};
}

}  // namespace tapehead
