// Where a run's tokens come from, as command-line options.
#pragma once

#include "tapehead/tools/command_line.h"
#include "tapehead/tools/run_data.h"

namespace tapehead {

/// Adds the options of the group "Data" to `command`; what they say goes to `data`, which must outlive it.
void add_data_options(Command command, DataOptions& data);

}  // namespace tapehead
