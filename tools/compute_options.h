// --device and --threads, the same for every command that computes, and --memory-limit, for those that train.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tapehead/core/device.h"
#include "tapehead/tools/command_line.h"

namespace tapehead {

/// Adds --threads N, which sets how many the process uses (set_cpu_threads) as soon as it is read.
void add_threads_option(Command command);

class ComputeOptions {
 public:
  /// Where a command computes that is told nothing.
  explicit ComputeOptions(std::string device = "cpu") : device_(std::move(device)) {}

  /// Adds --device cpu|cuda and --threads.
  void add_to(Command command);
  /// Adds --device alone: for what is only planned.
  void add_device_to(Command command);

  /// Throws ValueError unless it is cpu or cuda.
  Device device() const { return parse_device(device_); }

  /// Makes it the default device (core/device.h) while the guard lives. Throws what device_runtime() does,
  /// before any work is done: ValueError if this build has no backend for it, SystemError if the machine has
  /// no such device, or none that can be used.
  [[nodiscard]] DeviceGuard use_device() const;

 private:
  std::string device_;
};

/// How many bytes a run may take.
class MemoryLimit {
 public:
  /// Adds --memory-limit SIZE.
  void add_to(Command command);
  /// Throws ValueError unless what was given is a size.
  void validate() const;

  /// As given, else what the default device has left (DeviceRuntime::available_memory); none where it does
  /// not tell.
  std::optional<int64_t> bytes() const;

 private:
  std::string text_;
};

}  // namespace tapehead
