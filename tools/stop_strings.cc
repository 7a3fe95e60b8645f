#include "tapehead/tools/stop_strings.h"

#include <algorithm>

namespace tapehead {

// How many bytes at the end of `text` may become `stop`.
static size_t begun(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.ends_with(stop.substr(0, n))) return n;
  }
  return 0;
}

std::string StopStrings::add(std::string_view text) {
  if (found_) return "";
  held_ += text;
  size_t end = std::string::npos, held_back = 0;
  for (const std::string& stop : stop_strings_) {
    end = std::min(end, held_.find(stop));
    held_back = std::max(held_back, begun(held_, stop));
  }
  found_ = end != std::string::npos;
  const std::string shown = held_.substr(0, found_ ? end : held_.size() - held_back);
  held_.erase(0, found_ ? std::string::npos : shown.size());
  return shown;
}

}  // namespace tapehead
