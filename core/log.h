// What the program tells its user besides results: lines on standard error, through spdlog.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace spdlog {
class logger;
}

namespace tapehead {

/// The program's logger; with <spdlog/logger.h>, logger().info("step {}", n). Thread-safe. Its level is that
/// of the environment variable TAPEHEAD_LOG at the first call, else info.
spdlog::logger& logger();

/// Nothing below `level` is shown: trace, debug, info, warning, error, critical, off. Throws ValueError.
void set_log_level(std::string_view level);

struct Warning {
  std::string key;
  std::string message;
};

/// Logs the message as a warning, and keeps it, unless one of this key was issued already. Thread-safe.
void warn_once(std::string_view key, std::string_view message);

/// All warnings issued by warn_once, in order, shown or not. Thread-safe.
std::vector<Warning> issued_warnings();

}  // namespace tapehead
