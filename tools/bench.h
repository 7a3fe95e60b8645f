// What the benchmarks of `tapehead bench` share.
#pragma once

#include <vector>

#include "tapehead/tools/command_line.h"

namespace tapehead {

/// `bench head`, `bench train` and `bench generate`, as subcommands of `bench`.
void add_bench_head(Command bench);
void add_bench_train(Command bench);
void add_bench_generate(Command bench);

/// Of one value or more.
double median(std::vector<double> values);

}  // namespace tapehead
