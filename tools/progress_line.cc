#include "tapehead/tools/progress_line.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

#include "tapehead/tools/format.h"

namespace tapehead {

namespace {

// Back to the line's beginning, and erase to its end (ECMA-48).
constexpr std::string_view kErase = "\r\x1b[K";

}  // namespace

ProgressLine::ProgressLine() : terminal_(isatty(STDERR_FILENO) == 1), interval_(terminal_ ? 100 : 30'000) {
  if (!terminal_) next_ = std::chrono::steady_clock::now() + interval_;
}

ProgressLine::~ProgressLine() { clear(); }

bool ProgressLine::due() const { return std::chrono::steady_clock::now() >= next_; }

void ProgressLine::show(std::string_view text) {
  if (terminal_) {
    winsize size = {};  // of 0 columns where nobody knows
    ioctl(STDERR_FILENO, TIOCGWINSZ, &size);
    if (size.ws_col > 0) text = text.substr(0, size.ws_col - 1);
    fmt::print(stderr, "{}{}", kErase, text);
    shown_ = true;
  } else {
    fmt::print(stderr, "{}\n", text);
  }
  next_ = std::chrono::steady_clock::now() + interval_;
}

void ProgressLine::show_bytes(std::string_view what, int64_t done, int64_t bytes) {
  if (due()) show(fmt::format("{}  {} of {}", what, format_bytes(done), format_bytes(bytes)));
}

void ProgressLine::log(std::string_view text) {
  clear();
  fmt::print(stderr, "{}\n", text);
  next_ = std::chrono::steady_clock::now() + interval_;
}

void ProgressLine::clear() {
  if (shown_) fmt::print(stderr, "{}", kErase);
  shown_ = false;
}

}  // namespace tapehead
