// How far a long piece of work is, in one line that is written over again and again.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace tapehead {

/// A line on standard error; silent unless standard error is a terminal.
class ProgressLine {
 public:
  ProgressLine();
  /// Clears the line.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Whether a show() now would be seen: there is a terminal, and the last was a tenth of a second ago.
  bool due() const;
  /// Replaces the line.
  void show(std::string_view text);
  /// Empties the line, for other output to take its place.
  void clear();

 private:
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace tapehead
