// Numbers and paths as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tapehead {

/// "1,234,567".
std::string format_count(int64_t count);

/// A number written in digits, with commas between its thousands.
std::string with_thousands(std::string number);

/// "512 B", "1.5 KiB", "64.0 MiB".
std::string format_bytes(int64_t bytes);

/// "0:07", "12:34", "1:02:03": seconds as hours, minutes and seconds.
std::string format_duration(double seconds);

/// `text` as one word of a shell's command line.
std::string shell_quote(std::string_view text);

}  // namespace tapehead
