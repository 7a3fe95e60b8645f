#include "tapehead/tools/device_option.h"

#include <CLI/CLI.hpp>

namespace tapehead {

void DeviceOption::add_to(CLI::App& command) {
  command.add_option("--device", name_, "cpu or cuda")->capture_default_str();
}

DeviceGuard DeviceOption::use() const {
  device_runtime(device());
  return DeviceGuard(device());
}

}  // namespace tapehead
