#include "tapehead/tools/option_layers.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "tapehead/core/error.h"
#include "tapehead/core/json.h"
#include "tapehead/tools/presets.h"

namespace tapehead {

namespace {

using json = Json;

constexpr int64_t kVersion = 1;
constexpr const char* kVersionKey = "version";

/// Levenshtein's distance: how many letters must be put in, left out or changed.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

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
  const std::vector<Option> options = settable(command);
  check<ValueError>(!options.empty(), "{}: {} has no options", source, command.name());
  std::string wanted = key;
  std::ranges::replace(wanted, '_', '-');
  const auto distance = [&](const Option& option) { return edit_distance(wanted, key_of(option)); };
  const Option nearest = *std::ranges::min_element(options, {}, distance);
  check<ValueError>(distance(nearest) == 0, "{}: there is no option \"{}\"; did you mean \"{}\"?", source,
                    key, key_of(nearest));
  return nearest;
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
  return parsed.is_number() && parsed.dump() == text ? parsed : json(text);
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
    // "[]" is the default of a list that is empty.
    const bool none = values.size() == 1 && (values[0].empty() || (!option.given() && values[0] == "[]"));
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
