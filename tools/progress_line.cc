#include "tapehead/tools/progress_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace tapehead {

namespace {

// Back to the line's beginning, and erase to its end (ECMA-48).
constexpr std::string_view kErase = "\r\x1b[K";

}  // namespace

ProgressLine::ProgressLine() : terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() { clear(); }

bool ProgressLine::due() const { return terminal_ && std::chrono::steady_clock::now() >= next_; }

void ProgressLine::show(std::string_view text) {
  if (!terminal_) return;
  fmt::print(stderr, "{}{}", kErase, text);
  shown_ = true;
  next_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
}

void ProgressLine::clear() {
  if (shown_) fmt::print(stderr, "{}", kErase);
  shown_ = false;
}

}  // namespace tapehead
