// --threads, the same for every command that computes.
#pragma once

namespace CLI {
class App;
}

namespace tapehead {

/// Adds --threads N, which sets how many the process uses (set_cpu_threads) as soon as it is read.
void add_threads_option(CLI::App& command);

}  // namespace tapehead
