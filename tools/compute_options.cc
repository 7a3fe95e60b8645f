#include "tapehead/tools/compute_options.h"

#include "tapehead/core/byte_size.h"

namespace tapehead {

void add_threads_option(Command command) {
  command.add_option_function("--threads", set_cpu_threads, "processor threads; all if left out");
}

void ComputeOptions::add_device_to(Command command) {
  command.add_option("--device", device_, "cpu or cuda").show_default();
}

void ComputeOptions::add_to(Command command) {
  add_device_to(command);
  add_threads_option(command);
}

void MemoryLimit::add_to(Command command) {
  command.add_option("--memory-limit", text_, "do not begin a run that takes more; left out: what is free")
      .type_name("SIZE");
}

void MemoryLimit::validate() const {
  if (!text_.empty()) parse_size(text_);
}

std::optional<int64_t> MemoryLimit::bytes() const {
  return text_.empty() ? device_runtime(default_device()).available_memory() : parse_size(text_);
}

DeviceGuard ComputeOptions::use_device() const {
  device_runtime(device());
  return DeviceGuard(device());
}

}  // namespace tapehead
