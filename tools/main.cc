// The `tapehead` program: turns errors into one line and an exit status.
#include <csignal>

#include "tapehead/tools/errors.h"
#include "tapehead/tools/program.h"

int main(int argc, char** argv) {
  // Writing past the limit on file sizes is then an error like a full disk, and not the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  return tapehead::run_reporting_errors([&] { tapehead::run_program(argc, argv); });
}
