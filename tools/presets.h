// Models and ways to train them that have a name.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tapehead {

/// The options of `tapehead train` that the preset sets, as a config file holds them. Throws ValueError,
/// naming those that there are, for another name.
nlohmann::ordered_json preset(const std::string& name);

/// "quickstart, gpt2-124m, ...".
std::string preset_names();

}  // namespace tapehead
