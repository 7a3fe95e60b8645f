// What every command that trains takes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "tapehead/models/run_config.h"
#include "tapehead/tools/command_line.h"

namespace tapehead {

/// Optimiser, schedule, head, and what happens between steps: fields of `config`, with the defaults that they
/// have there, but a checkpoint every 250 steps.
void add_run_options(Command command, RunConfig& config);

/// --resume. It excludes the options that the command has so far, which describe a new run, but for those
/// `allowed`.
void add_resume_option(Command command, std::string& folder, std::initializer_list<std::string> allowed = {});

}  // namespace tapehead
