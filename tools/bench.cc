// tapehead bench: how fast things are, beside what their matrix products alone would take.
#include "tapehead/tools/bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "tapehead/backends/backend.h"
#include "tapehead/core/stopwatch.h"
#include "tapehead/core/view.h"
#include "tapehead/ops/random.h"
#include "tapehead/tools/commands.h"

namespace tapehead {

double seconds_of(const std::function<void()>& work) {
  const Stopwatch stopwatch;
  work();
  return stopwatch.seconds();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

ReferenceProduct::ReferenceProduct(DType dtype) {
  const DType of = dtype == DType::f16 ? DType::f32 : dtype;
  Generator random{.seed = 1};
  a_ = random_normal({kRows, kDepth}, 0, 1, random, of);
  b_ = transpose(random_normal({kColumns, kDepth}, 0, 1, random, of), 0, 1);
  y_ = Tensor({kRows, kColumns}, of);
}

double ReferenceProduct::seconds() {
  return seconds_of([&] { backend(y_).matmul(1, a_, b_, 0, y_); });
}

void add_bench(CLI::App& program) {
  CLI::App* bench =
      program.add_subcommand("bench", "Measure speed, beside what the matrix products alone take");
  bench->require_subcommand(1);
  add_bench_head(*bench);
  add_bench_train(*bench);
  bench->footer("Example:\n  tapehead bench head --shape 2048,256,8192\n  tapehead bench train");
}

}  // namespace tapehead
