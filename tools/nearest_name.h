// What somebody may have meant by a name that there is not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tapehead {

/// The one of `names`, which are not none, that takes the fewest letters put in, left out or changed to become
/// `wanted`; of several the first.
std::string nearest_name(std::string_view wanted, const std::vector<std::string>& names);

}  // namespace tapehead
