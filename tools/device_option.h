// --device, the same for every command that computes.
#pragma once

#include <string>

#include "tapehead/core/device.h"

namespace CLI {
class App;
}

namespace tapehead {

class DeviceOption {
 public:
  /// Where a command computes that is told nothing.
  explicit DeviceOption(std::string name = "cpu") : name_(std::move(name)) {}

  /// Adds --device cpu|cuda.
  void add_to(CLI::App& command);

  /// Throws ValueError unless it is cpu or cuda.
  Device device() const { return parse_device(name_); }

  /// Makes it the default device (core/device.h) while the guard lives. Throws what device_runtime() does, before any work is
  /// done: ValueError if this build has no backend for it, SystemError if the machine has no such device, or none that
  /// can be used.
  [[nodiscard]] DeviceGuard use() const;

 private:
  std::string name_;
};

}  // namespace tapehead
