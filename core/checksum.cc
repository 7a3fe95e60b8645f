#include "tapehead/core/checksum.h"

#include <fmt/core.h>
#include <xxhash.h>

namespace tapehead {

std::string checksum(std::string_view bytes) {
  return fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
}

}  // namespace tapehead
