// Where a run's tokens come from, as command-line options.
#pragma once

#include "tapehead/tools/run_folder.h"

namespace CLI {
class App;
}

namespace tapehead {

/// Adds the options of the group "Data" to `command`; what they say goes to `data`, which must outlive it.
void add_data_options(CLI::App& command, DataOptions& data);

}  // namespace tapehead
