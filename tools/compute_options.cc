#include "tapehead/tools/compute_options.h"

#include <CLI/CLI.hpp>

namespace tapehead {

void add_threads_option(CLI::App& command) {
  command.add_option_function<int64_t>(
      "--threads", [](const int64_t& threads) { set_cpu_threads(threads); },
      "processor threads; all if left out");
}

void ComputeOptions::add_device_to(CLI::App& command) {
  command.add_option("--device", device_, "cpu or cuda")->capture_default_str();
}

void ComputeOptions::add_to(CLI::App& command) {
  add_device_to(command);
  add_threads_option(command);
}

DeviceGuard ComputeOptions::use_device() const {
  device_runtime(device());
  return DeviceGuard(device());
}

}  // namespace tapehead
