#include "tapehead/models/freeze.h"

#include <fnmatch.h>

#include <algorithm>
#include <sstream>

namespace tapehead {

void freeze(const ParameterList& parameters, const std::string& patterns) {
  std::istringstream list(patterns);
  for (std::string pattern; std::getline(list, pattern, ',');) {
    bool found = false;
    for (const auto& [name, tensor] : parameters) {
      if (fnmatch(pattern.c_str(), name.c_str(), 0) != 0) continue;
      Tensor(tensor).set_requires_grad(false);
      found = true;
    }
    check<ValueError>(found, "[freeze] {} matches none of the {} parameters, which have names like {} and {}",
                      pattern, parameters.size(), parameters.front().first, parameters.back().first);
  }
  const bool left = std::ranges::any_of(parameters, [](const auto& p) { return p.second.requires_grad(); });
  check<ValueError>(left, "[freeze] {} leaves no parameter to train", patterns);
}

}  // namespace tapehead
