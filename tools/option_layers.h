// Where an option's value comes from: the command line, else a config file, else a preset, else its default.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace CLI {
class App;
}

namespace tapehead {

/// A config file: an object whose keys are options without their dashes ("n-layer": 4), and "version".
/// Throws ValueError for a file that is no JSON object, or of a newer version; read_file's errors.
nlohmann::ordered_json read_config(const std::string& path);

/// Gives each option of `command` that has no value yet the one that it has in `layer`, whose name in errors is `source`.
/// Throws ValueError for a key that is no option, suggesting the nearest one, and for a value that the option does not take.
void apply_layer(CLI::App& command, const nlohmann::ordered_json& layer, const std::string& source);

/// The same, but leaves out what another option that has a value excludes: for a preset, which is nobody's wish in
/// particular.
void apply_preset(CLI::App& command, const nlohmann::ordered_json& preset, const std::string& source);

/// Throws ValueError that names both where an option with a value excludes another one with a value.
void check_contradictions(const CLI::App& command);

/// All options of `command` with the values that they have, as a config file holds them. Left out are those without a value
/// or default, those in `without`, and defaults that another option with a value excludes.
nlohmann::ordered_json resolved_config(const CLI::App& command, const std::vector<std::string>& without);

}  // namespace tapehead
