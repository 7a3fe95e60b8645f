// Whether bytes are still what they were.
#pragma once

#include <string>
#include <string_view>

namespace tapehead {

/// XXH3 of 64 bits (https://xxhash.com), as 16 hexadecimal digits: against accidents, not against attackers.
std::string checksum(std::string_view bytes);

}  // namespace tapehead
