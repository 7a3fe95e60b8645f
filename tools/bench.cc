// tapehead bench: how fast things are, beside what the machine could do.
#include "tapehead/tools/bench.h"

#include <algorithm>

#include "tapehead/tools/commands.h"

namespace tapehead {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

void add_bench(Command program) {
  Command bench = program.add_command("bench", "Measure speed, beside what the machine could do");
  bench.require_command();
  add_bench_head(bench);
  add_bench_train(bench);
  add_bench_generate(bench);
  bench.footer(
      "Example:\n  tapehead bench head --shape 2048,256,8192\n  tapehead bench train\n  tapehead bench "
      "generate");
}

}  // namespace tapehead
