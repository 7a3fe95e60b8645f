#include "tapehead/tools/program.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "tapehead/core/error.h"
#include "tapehead/tools/commands.h"

namespace tapehead {
namespace {

constexpr void (*kCommands[])(CLI::App&) = {add_train,  add_train_head, add_eval,   add_generate,
                                            add_report, add_import,     add_export, add_tokenize,
                                            add_head,   add_plan,       add_bench,  add_compare_backends};

/// Help that shows of an option its name, what it takes, and its default.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(30); }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";
    std::string text = " " + option->get_type_name();
    if (!option->get_default_str().empty()) text += " [" + option->get_default_str() + "]";
    return text;
  }
};

}  // namespace

void run_program(int argc, const char* const* argv) {
  CLI::App program("Trains small language models on one machine, and makes use of them.");
  program.require_subcommand(0, 1);  // none is reported below, after words that are no subcommand
  program.formatter(std::make_shared<HelpFormatter>());
  for (const auto add : kCommands) add(program);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) {  // --help was asked for
      program.exit(e);
    } else {
      fail<ValueError>("{}; --help tells more", e.what());
    }
  }
  check<ValueError>(!program.get_subcommands().empty(), "a subcommand is required; --help lists them");
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
    fail<SystemError>("standard output could not be written: {}", std::strerror(errno));
  }
}

}  // namespace tapehead
