// tapehead bench head: how fast the head is, beside what its matrix products alone would take.
#include <fmt/core.h>

#include <memory>

#include "tapehead/core/memory.h"
#include "tapehead/ops/linear_cross_entropy.h"
#include "tapehead/ops/random.h"
#include "tapehead/tools/bench.h"
#include "tapehead/tools/compute_options.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/head_arguments.h"
#include "tapehead/tools/product_floor.h"
#include "tapehead/tools/timing.h"

namespace tapehead {
namespace {

using json = nlohmann::ordered_json;

struct HeadBench {
  std::string shape = "4096,768,50257", dtype = "f32";
  HeadArguments head;
  double ignored = 0;
  int64_t repeats = 5;
  bool as_json = false;
  ComputeOptions compute;
};

struct Sizes {
  int64_t N, F, C;
};

Sizes parse_shape(const std::string& text) {
  Sizes s{};
  int end = 0;
  const int read = std::sscanf(text.c_str(), "%ld,%ld,%ld%n", &s.N, &s.F, &s.C, &end);
  check<ValueError>(read == 3 && end == std::ssize(text) && s.N >= 1 && s.F >= 1 && s.C >= 1,
                    "--shape {}: it is N,F,C, rows, features and classes, as in 4096,768,50257", text);
  return s;
}

void bench_head(const HeadBench& o) {
  const DeviceGuard device = o.compute.use_device();
  const auto [N, F, C] = parse_shape(o.shape);
  const DType dtype = parse_input_dtype(o.dtype);
  check<ValueError>(o.repeats >= 1, "--repeats {}: at least 1", o.repeats);
  check<ValueError>(o.ignored >= 0 && o.ignored < 1, "--ignored {}: a share of the rows, in [0, 1)",
                    o.ignored);
  Generator filter_numbers;
  const LinearCrossEntropyArgs args = o.head.args(filter_numbers);

  Generator random{.seed = 1};
  Tensor input = random_normal({N, F}, 0, 1, random, dtype).set_requires_grad();
  Tensor weight = random_normal({C, F}, 0, 0.02, random, dtype).set_requires_grad();
  std::vector<int64_t> classes(static_cast<size_t>(N));
  int64_t counted = 0;
  for (int64_t& c : classes) {
    const bool counts = random.uniform() >= o.ignored;
    counted += counts;
    c = counts ? static_cast<int64_t>(random.below(static_cast<uint64_t>(C)))
               : args.ignore_index.value_or(kDefaultIgnoreIndex);
  }
  const Tensor target = Tensor::from<int64_t>({N}, classes);
  ReferenceProduct product(dtype);

  std::vector<double> forward, backward_, total, products;
  int64_t peak = 0;
  for (int64_t i = -1; i < o.repeats; ++i) {  // the first one warms up
    input.set_grad({});
    weight.set_grad({});
    const double p = product.seconds();
    reset_peak(default_device());
    const int64_t before = memory_stats(default_device()).live_bytes;
    Tensor loss;
    const double f = seconds_of([&] { loss = linear_cross_entropy(input, weight, target, args); });
    const double b = seconds_of([&] { backward(loss, Tensor::full(loss.shape(), 1, loss.dtype())); });
    peak = memory_stats(default_device()).peak_bytes - before;
    if (i < 0) continue;
    products.push_back(p);
    forward.push_back(f);
    backward_.push_back(b);
    total.push_back(f + b);
  }
  const double rate = product.flops() / median(products);
  const double flops = 6.0 * static_cast<double>(counted) * static_cast<double>(F) * static_cast<double>(C);
  const double share = flops / rate / median(total);
  const int64_t rows =
      args.options ? args.options->resolve(N, F, C, dtype, default_device()).batch_chunk_size : N;

  if (o.as_json) {
    fmt::print("{}\n", json({{"forward_seconds", median(forward)},
                             {"backward_seconds", median(backward_)},
                             {"total_seconds", median(total)},
                             {"peak_bytes", peak},
                             {"roofline_share", share},
                             {"product_flops_per_second", rate},
                             {"rows_per_chunk", rows}})
                           .dump());
    return;
  }
  fmt::print("{} rows ({} count), {} features, {} classes, {}; {} rows a chunk; medians of {}\n",
             format_count(N), format_count(counted), format_count(F), format_count(C), name(dtype),
             format_count(rows), o.repeats);
  fmt::print("  {:<34}{:>9.3f} s\n", "forward", median(forward));
  fmt::print("  {:<34}{:>9.3f} s\n", "backward", median(backward_));
  fmt::print("  {:<34}{:>9.3f} s\n", "together", median(total));
  fmt::print("  {:<34}{:>9.3f} s at {:.0f} GFLOP/s\n", "the matrix products alone", flops / rate, rate / 1e9);
  fmt::print("  {:<34}{:>9.2f}\n", "share of the time that they take", share);
  fmt::print("  {:<34}{:>11}\n", "memory beyond the arguments", format_bytes(peak));
}

}  // namespace

void add_bench_head(Command bench) {
  Command head = bench.add_command("head", "linear_cross_entropy, forward and backward");
  const auto options = std::make_shared<HeadBench>();
  head.add_option("--shape", options->shape, "rows, features and classes").type_name("N,F,C").show_default();
  head.add_option("--dtype", options->dtype, "f64, f32, f16 or bf16").show_default();
  options->head.add_options(head);
  head.add_option("--ignored", options->ignored, "share of the rows that are ignored").show_default();
  head.add_option("--repeats", options->repeats, "how often; medians are printed").show_default();
  options->compute.add_to(head);
  head.add_flag("--json", options->as_json, "print one JSON object");
  head.footer("Example:\n  tapehead bench head --shape 2048,256,8192 --dtype bf16 --chunking-method auto");
  head.callback([=] { bench_head(*options); });
}

}  // namespace tapehead
