// Strings that end a generated text.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tapehead {

/// Takes a text as it comes, in parts that cut stop strings anywhere, and gives back what may be shown:
/// nothing of a string that ends it.
class StopStrings {
 public:
  /// The text ends before the first of `stop_strings`, which are not empty.
  explicit StopStrings(std::vector<std::string> stop_strings) : stop_strings_(std::move(stop_strings)) {}

  /// What can be shown now that `text` came: all but what may be the beginning of a stop string.
  std::string add(std::string_view text);
  /// Whether a stop string came. From then on add() and finish() give nothing.
  bool found() const { return found_; }
  /// What was held back, when no more comes.
  std::string finish() { return std::exchange(held_, {}); }

 private:
  std::vector<std::string> stop_strings_;
  std::string held_;  // not shown yet
  bool found_ = false;
};

}  // namespace tapehead
