// The subcommands of the program.
//
// To add one: write add_NAME in tools/NAME.cc, name it here, in kCommands of program.cc, and in BUILD. It
// adds a subcommand with options, a footer with an example, and a callback that does the work or throws.
#pragma once

namespace CLI {
class App;
}

namespace tapehead {

void add_train(CLI::App& program);
void add_train_head(CLI::App& program);
void add_eval(CLI::App& program);
void add_generate(CLI::App& program);
void add_import(CLI::App& program);
void add_export(CLI::App& program);
void add_tokenize(CLI::App& program);
void add_report(CLI::App& program);
void add_head(CLI::App& program);
void add_plan(CLI::App& program);
void add_bench(CLI::App& program);
void add_compare_backends(CLI::App& program);

}  // namespace tapehead
