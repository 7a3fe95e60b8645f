#include "tapehead/core/byte_size.h"

#include <charconv>
#include <utility>

#include "tapehead/core/error.h"

namespace tapehead {

int64_t parse_size(std::string_view text) {
  double number = 0;
  const auto [unit, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1},      {"B", 1},        {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  const std::string_view rest(unit, static_cast<size_t>(text.data() + text.size() - unit));
  for (const auto& [name, factor] : kUnits) {
    if (error == std::errc() && rest == name && number >= 0 && number * factor < 0x1p62)
      return static_cast<int64_t>(number * factor);
  }
  fail<ValueError>("\"{}\" is not a size: a number and B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, as in 64MiB",
                   text);
}

}  // namespace tapehead
