// What the benchmarks of `tapehead bench` share.
#pragma once

#include <vector>

namespace CLI {
class App;
}

namespace tapehead {

/// `bench head` and `bench train`, as subcommands of `bench`.
void add_bench_head(CLI::App& bench);
void add_bench_train(CLI::App& bench);

/// Of one value or more.
double median(std::vector<double> values);

}  // namespace tapehead
