// Sizes of memory and files as people write them.
#pragma once

#include <cstdint>
#include <string_view>

namespace tapehead {

/// Bytes from "5000", "64MiB", "1.5GB"; units B, kB, MB, GB, TB and KiB, MiB, GiB, TiB. Throws ValueError.
int64_t parse_size(std::string_view text);

}  // namespace tapehead
