// All that is wrong with an input, for one error that says it: the first few in words, the rest as a number.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "tapehead/core/error.h"

namespace tapehead {

class ProblemList {
 public:
  /// fmt's rules; Shape, DType and Device can be formatted.
  template <class... Args>
  void add(fmt::format_string<Args...> message, Args&&... args) {
    if (count_++ < kShown) shown_.push_back(fmt::format(message, std::forward<Args>(args)...));
  }

  bool empty() const { return count_ == 0; }

  /// "this; that; and 7 more"
  std::string text() const {
    return fmt::format("{}{}", fmt::join(shown_, "; "),
                       count_ > kShown ? fmt::format("; and {} more", count_ - kShown) : "");
  }

 private:
  static constexpr int64_t kShown = 5;
  std::vector<std::string> shown_;
  int64_t count_ = 0;
};

}  // namespace tapehead
