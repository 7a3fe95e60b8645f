// The `tapehead` program, as a function: finds the subcommand and runs it.
#pragma once

namespace tapehead {

/// Takes main's arguments. Throws every error: ValueError on words that it does not know, what the subcommand
/// throws, and SystemError if standard output cannot be written.
void run_program(int argc, const char* const* argv);

}  // namespace tapehead
