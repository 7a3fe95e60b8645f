#include "tapehead/tools/threads_option.h"

#include <CLI/CLI.hpp>

#include "tapehead/core/device.h"

namespace tapehead {

void add_threads_option(CLI::App& command) {
  command.add_option_function<int64_t>(
      "--threads", [](const int64_t& threads) { set_cpu_threads(threads); },
      "processor threads; all if left out");
}

}  // namespace tapehead
