#include "tapehead/tools/option_layers.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "tapehead/core/error.h"
#include "tapehead/core/json.h"
#include "tapehead/tools/nearest_name.h"
#include "tapehead/tools/presets.h"

namespace tapehead {

namespace {

using json = Json;

constexpr int64_t kVersion = 1;
constexpr const char* kVersionKey = "version";

/// "--n-layer" -> "n-layer"; "" for an argument without dashes.
std::string key_of(const Option& option) {
  const std::string name = option.name();
  return name.starts_with("--") ? name.substr(2) : "";
}

/// The options that a config file may set.
std::vector<Option> settable(const Command& command) {
  std::vector<Option> list = command.options();
  std::erase_if(list, [](const Option& option) { return key_of(option).empty(); });
  return list;
}

Option find_option(const Command& command, const std::string& key, const std::string& source) {
  std::string wanted = key;
  std::ranges::replace(wanted, '_', '-');
  std::vector<std::string> keys;
  for (const Option& option : settable(command)) {
    if (key_of(option) == wanted) return option;
    keys.push_back(key_of(option));
  }
  check<ValueError>(!keys.empty(), "{}: {} has no options", source, command.name());
  fail<ValueError>("{}: there is no option \"{}\"; did you mean \"{}\"?", source, key,
                   nearest_name(wanted, keys));
}

void set(Option option, const json& value, const std::string& source) {
  const std::string place = fmt::format("{}: \"{}\"", source, key_of(option));
  std::vector<std::string> texts;
  for (const json& item : value.is_array() ? value : json::array({value})) {
    check<ValueError>(item.is_string() || item.is_boolean() || item.is_number(),
                      "{} is {}: a value is a text, a number, true, false, or a list of them", place,
                      item.dump());
    texts.push_back(item.is_string() ? item.get<std::string>() : item.dump());
  }
  option.set(texts, place);
}

/// Numbers and truth values as such, the rest as text.
json typed(const Option& option, const std::string& text) {
  if (option.is_flag()) return text == "true";
  const json parsed = parse_json(text);
  return (parsed.is_number() || parsed.is_boolean()) && parsed.dump() == text ? parsed : json(text);
}

json read_config(const std::string& path) {
  json config = read_json_object("config", path);
  const json version = config.value(kVersionKey, json(kVersion));
  check<ValueError>(version.is_number_integer() && version >= 1,
                    "[config] {}: version is {}, but is a number from 1 on", path, version.dump());
  check<ValueError>(version <= kVersion,
                    "[config] {} is of version {}, and this program reads versions up to {}: use a newer one",
                    path, version.dump(), kVersion);
  config.erase(kVersionKey);
  return config;
}

}  // namespace

void apply_config(Command command, const std::string& path) {
  const json config = read_config(path);
  for (const auto& [key, value] : config.items()) {
    const Option option = find_option(command, key, path);
    if (!option.given()) set(option, value, path);
  }
}

void apply_preset(Command command, const std::string& name) {
  const json options = preset(name);
  const std::string source = "preset " + name;
  for (const auto& [key, value] : options.items()) {
    const Option option = find_option(command, key, source);
    if (!option.given() && !option.contradiction()) set(option, value, source);
  }
}

void check_contradictions(const Command& command) {
  for (const Option& option : command.options()) {
    const std::optional<Option> other = option.given() ? option.contradiction() : std::nullopt;
    if (other) fail<ValueError>("{} excludes {}", option.name(), other->name());
  }
}

std::string resolved_config(const Command& command, const std::vector<std::string>& without) {
  json config = {{kVersionKey, kVersion}};
  for (const Option& option : settable(command)) {
    const std::string key = key_of(option);
    if (std::ranges::count(without, key) > 0) continue;
    if (!option.given() && option.contradiction()) continue;
    const std::vector<std::string> values = option.values();
    const bool none = values.size() == 1 && values[0].empty();
    if (values.empty() || (none && !option.is_flag())) continue;
    if (values.size() == 1) {
      config[key] = typed(option, values[0]);
    } else {
      config[key] = values;
    }
  }
  return config.dump(2) + "\n";
}

}  // namespace tapehead
