#include "tapehead/tools/stop_signal.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string_view>

namespace tapehead {

namespace {

// Signal handlers reach nothing but globals.
std::atomic<bool> stop_requested = false;
std::atomic<int> stop_signal = 0;
struct sigaction outer_interrupt, outer_terminate;

void set_both(const struct sigaction* interrupt, const struct sigaction* terminate,
              struct sigaction* old_interrupt, struct sigaction* old_terminate) {
  sigaction(SIGINT, interrupt, old_interrupt);
  sigaction(SIGTERM, terminate, old_terminate);
}

void on_signal(int signal) {
  stop_signal = signal;
  stop_requested = true;
  set_both(&outer_interrupt, &outer_terminate, nullptr, nullptr);
  constexpr std::string_view kNotice = "\nfinishing this step and saving; again to quit at once\n";
  [[maybe_unused]] const auto ignored = write(STDERR_FILENO, kNotice.data(), kNotice.size());
}

}  // namespace

StopSignal::StopSignal() {
  stop_requested = false;
  stop_signal = 0;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  set_both(&action, &action, &outer_interrupt, &outer_terminate);
}

StopSignal::~StopSignal() { set_both(&outer_interrupt, &outer_terminate, nullptr, nullptr); }

const std::atomic<bool>& StopSignal::requested() const { return stop_requested; }

void StopSignal::die() const {
  if (stop_signal == 0) return;
  std::fflush(nullptr);
  raise(stop_signal);
}

}  // namespace tapehead
