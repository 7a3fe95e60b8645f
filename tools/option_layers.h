// Where an option's value comes from: the command line, else a config file, else a preset, else its default.
#pragma once

#include <string>
#include <vector>

#include "tapehead/tools/command_line.h"

namespace tapehead {

/// Gives each option of `command` that has no value yet the one that it has in a config file: a JSON object
/// whose keys are options without their dashes ("n-layer": 4), and "version". Throws ValueError for a file
/// that is none, or of a newer version, for a key that is no option, suggesting the nearest one, and for a
/// value that the option does not take; read_file's errors.
void apply_config(Command command, const std::string& path);

/// The same from a preset (presets.h), but leaves out what another option that has a value excludes: a preset
/// is nobody's wish in particular. Throws ValueError for a name that there is none of.
void apply_preset(Command command, const std::string& name);

/// Throws ValueError that names both where an option with a value excludes another one with a value.
void check_contradictions(const Command& command);

/// A config file of all options of `command`, with the values that they have. Left out are those without a
/// value or default, those in `without`, and defaults that another option with a value excludes.
std::string resolved_config(const Command& command, const std::vector<std::string>& without);

}  // namespace tapehead
