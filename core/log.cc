#include "tapehead/core/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <optional>

#include "tapehead/core/error.h"

namespace tapehead {

// spdlog's own from_str takes "off" for any word that it does not know.
static std::optional<spdlog::level::level_enum> parse_level(std::string_view text) {
  const auto level = spdlog::level::from_str(std::string(text));
  if (level == spdlog::level::off && text != "off") return {};
  return level;
}

static spdlog::logger* make_logger() {
  auto* made = new spdlog::logger("tapehead", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  made->set_pattern("tapehead %^%l%$: %v");
  if (const char* text = std::getenv("TAPEHEAD_LOG")) {
    const auto level = parse_level(text);
    made->set_level(level.value_or(spdlog::level::info));
    if (!level) {
      made->warn("TAPEHEAD_LOG={} is no level: it is trace, debug, info, warning, error, critical or off",
                 text);
    }
  }
  return made;
}

spdlog::logger& logger() {
  // Never destroyed: what ends after main may still have something to say.
  static spdlog::logger* const instance = make_logger();
  return *instance;
}

void set_log_level(std::string_view level) {
  const auto parsed = parse_level(level);
  check<ValueError>(
      parsed.has_value(),
      "[set_log_level] \"{}\" is no level: it is trace, debug, info, warning, error, critical or off", level);
  logger().set_level(*parsed);
}

namespace {

struct Warnings {
  std::mutex mutex;
  std::vector<Warning> list;
};

Warnings& warnings() {
  static Warnings* const instance = new Warnings;
  return *instance;
}

}  // namespace

void warn_once(std::string_view key, std::string_view message) {
  const std::lock_guard lock(warnings().mutex);
  auto& list = warnings().list;
  if (std::any_of(list.begin(), list.end(), [&](const Warning& w) { return w.key == key; })) return;
  list.push_back({std::string(key), std::string(message)});
  logger().warn("{}", message);
}

std::vector<Warning> issued_warnings() {
  const std::lock_guard lock(warnings().mutex);
  return warnings().list;
}

}  // namespace tapehead
