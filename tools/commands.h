// The subcommands of the program.
//
// To add one: write add_NAME in tools/NAME.cc, name it here, in kCommands of program.cc, and in BUILD. It
// adds a command (command_line.h) with options, a footer with an example, and a callback that does the work
// or throws.
#pragma once

#include "tapehead/tools/command_line.h"

namespace tapehead {

void add_train(Command program);
void add_train_head(Command program);
void add_eval(Command program);
void add_generate(Command program);
void add_import(Command program);
void add_export(Command program);
void add_tokenize(Command program);
void add_report(Command program);
void add_head(Command program);
void add_plan(Command program);
void add_bench(Command program);
void add_compare_backends(Command program);

}  // namespace tapehead
