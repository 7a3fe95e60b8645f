// How the program ends when something went wrong.
#pragma once

#include <functional>

namespace tapehead {

/// Runs `body`. An exception becomes one line on standard error, "error: ValueError: ...", and the exit
/// status: 2 for what the user can put right (ValueError, TypeError, RuntimeError), 1 for what the machine
/// refused. Otherwise returns 0.
int run_reporting_errors(const std::function<void()>& body);

}  // namespace tapehead
