// How far long work is: on a terminal in one line that is written over again and again, else in a line now
// and then.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace tapehead {

/// On standard error. Where that is no terminal, plain lines half a minute apart: short work is silent.
class ProgressLine {
 public:
  ProgressLine();
  /// Clears the line.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Whether it is time for another show(): the last was a tenth of a second ago, or half a minute where
  /// there is no terminal.
  bool due() const;
  /// Replaces the line, cut to the terminal's width; or writes one.
  void show(std::string_view text);
  /// Shows "WHAT  DONE of BYTES", if it is due().
  void show_bytes(std::string_view what, int64_t done, int64_t bytes);
  /// Writes a line that stays, in the place of the one shown.
  void log(std::string_view text);
  /// Empties the line, for other output to take its place.
  void clear();

 private:
  bool terminal_;
  std::chrono::milliseconds interval_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace tapehead
