#include "tapehead/tools/option_layers.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"

namespace tapehead {

namespace {

using json = nlohmann::ordered_json;

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

/// "--n-layer" -> "n-layer".
std::string key_of(const CLI::Option& option) {
  return option.get_lnames().empty() ? "" : option.get_lnames().front();
}

bool is_flag(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

/// The options that a config file may set.
std::vector<CLI::Option*> settable(CLI::App& command) {
  std::vector<CLI::Option*> list;
  for (CLI::Option* option : command.get_options()) {
    if (!key_of(*option).empty() && option != command.get_help_ptr()) list.push_back(option);
  }
  return list;
}

CLI::Option& find_option(CLI::App& command, const std::string& key, const std::string& source) {
  const std::vector<CLI::Option*> options = settable(command);
  check<ValueError>(!options.empty(), "{}: {} has no options", source, command.get_name());
  std::string wanted = key;
  std::ranges::replace(wanted, '_', '-');
  const auto distance = [&](CLI::Option* option) { return edit_distance(wanted, key_of(*option)); };
  CLI::Option* nearest = *std::ranges::min_element(options, {}, distance);
  check<ValueError>(distance(nearest) == 0, "{}: there is no option \"{}\"; did you mean \"{}\"?", source,
                    key, key_of(*nearest));
  return *nearest;
}

void set(CLI::Option& option, const json& value, const std::string& source) {
  const json list = value.is_array() ? value : json::array({value});
  for (const json& item : list) {
    check<ValueError>(item.is_string() || item.is_boolean() || item.is_number(),
                      "{}: \"{}\" is {}: a value is a text, a number, true, false, or a list of them", source,
                      key_of(option), item.dump());
    option.add_result(item.is_string() ? item.get<std::string>() : item.dump());
  }
  try {
    option.run_callback();
  } catch (const CLI::Error& e) {
    fail<ValueError>("{}: \"{}\": {}", source, key_of(option), e.what());
  }
}

const CLI::Option* contradiction(const CLI::Option& option) {
  for (const CLI::Option* other : option.get_excludes()) {
    if (other->count() > 0) return other;
  }
  return nullptr;
}

/// Numbers and truth values as such, the rest as text.
json typed(const CLI::Option& option, const std::string& text) {
  if (is_flag(option)) return text == "true";
  const json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return parsed.is_number() && parsed.dump() == text ? parsed : json(text);
}

}  // namespace

json read_config(const std::string& path) {
  json config = json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  check<ValueError>(config.is_object(), "[config] {} holds no JSON object", path);
  const json version = config.value(kVersionKey, json(kVersion));
  check<ValueError>(version.is_number_integer() && version >= 1,
                    "[config] {}: version is {}, but is a number from 1 on", path, version.dump());
  check<ValueError>(version <= kVersion,
                    "[config] {} is of version {}, and this program reads versions up to {}: use a newer one",
                    path, version.dump(), kVersion);
  config.erase(kVersionKey);
  return config;
}

void apply_layer(CLI::App& command, const json& layer, const std::string& source) {
  for (const auto& [key, value] : layer.items()) {
    CLI::Option& option = find_option(command, key, source);
    if (option.count() == 0) set(option, value, source);
  }
}

void apply_preset(CLI::App& command, const json& preset, const std::string& source) {
  for (const auto& [key, value] : preset.items()) {
    CLI::Option& option = find_option(command, key, source);
    if (option.count() == 0 && !contradiction(option)) set(option, value, source);
  }
}

void check_contradictions(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    const CLI::Option* other = option->count() > 0 ? contradiction(*option) : nullptr;
    if (other) fail<ValueError>("{} excludes {}", option->get_name(), other->get_name());
  }
}

json resolved_config(const CLI::App& command, const std::vector<std::string>& without) {
  json config = {{kVersionKey, kVersion}};
  for (const CLI::Option* option : command.get_options()) {
    const std::string key = key_of(*option);
    if (key.empty() || option == command.get_help_ptr() || std::ranges::count(without, key) > 0) continue;
    if (option->count() == 0 && contradiction(*option)) continue;
    const std::vector<std::string> values =
        option->count() > 0 ? option->reduced_results() : std::vector{option->get_default_str()};
    // "[]" is the default of a list that is empty.
    const bool none =
        values.size() == 1 && (values[0].empty() || (option->count() == 0 && values[0] == "[]"));
    if (values.empty() || (none && !is_flag(*option))) continue;
    if (values.size() == 1) {
      config[key] = typed(*option, values[0]);
    } else {
      config[key] = values;
    }
  }
  return config;
}

}  // namespace tapehead
