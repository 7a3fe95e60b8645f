#include "tapehead/tools/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tapehead {

/// Levenshtein's distance: how many letters must be put in, left out or changed.
static size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

std::string nearest_name(std::string_view wanted, const std::vector<std::string>& names) {
  return *std::ranges::min_element(names, {}, [&](const auto& name) { return edit_distance(wanted, name); });
}

}  // namespace tapehead
