#include "tapehead/tools/program.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "tapehead/core/error.h"
#include "tapehead/tools/commands.h"

namespace tapehead {

static constexpr const char* kVersion = "tapehead 0.1";

static constexpr void (*kCommands[])(Command) = {
    add_train,  add_train_head, add_eval, add_generate, add_report, add_import,
    add_export, add_tokenize,   add_head, add_plan,     add_bench,  add_compare_backends};

void run_program(int argc, const char* const* argv) {
  CommandLine line("Trains small language models on one machine, and makes use of them.", kVersion);
  for (const auto add : kCommands) add(line.program());
  line.run(argc, argv);
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
    fail<SystemError>("standard output could not be written: {}", std::strerror(errno));
  }
}

}  // namespace tapehead
