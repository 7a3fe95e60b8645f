// Ctrl-C that lets the work reach a good place first.
#pragma once

#include <atomic>

namespace tapehead {

/// While it lives, the first SIGINT or SIGTERM only sets a flag, and a second one ends the process as ever.
/// One at a time in a process.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// True once a signal came.
  const std::atomic<bool>& requested() const;

  /// Ends the process by the signal that came, so that its parent sees why. Returns if none came.
  void die() const;
};

}  // namespace tapehead
