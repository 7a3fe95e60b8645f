// tapehead bench train: how fast a training step is, beside what its matrix products alone would take, and
// where its time goes.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tapehead/core/memory.h"
#include "tapehead/core/op_timer.h"
#include "tapehead/models/memory_planner.h"
#include "tapehead/models/trainer.h"
#include "tapehead/tools/bench.h"
#include "tapehead/tools/compute_options.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/product_floor.h"
#include "tapehead/tools/step_arguments.h"
#include "tapehead/tools/timing.h"

namespace tapehead {
namespace {

using json = nlohmann::ordered_json;

constexpr int64_t kWarmUp = 2;  // steps: the first makes what later ones find made

struct TrainBench {
  StepArguments step;
  std::string gradient_filter = "none";
  int64_t repeats = 5;
  bool capture = false, as_json = false;
  ComputeOptions compute;
};

struct Measured {
  std::vector<double> steps, products;  // seconds
  std::vector<OpTime> ops;  // of all steps together; "other" is what no operation was charged with
  int64_t peak_bytes = 0;   // the trainer's: parameters, gradients, moments, a step's own, its recording
  int64_t allocations = 0, system_allocations = 0;  // the most in one step
};

Measured measure(Trainer& trainer, ReferenceProduct& product, int64_t repeats, int64_t bytes_before) {
  const Device device = trainer.model().device();
  for (int64_t i = 0; i < kWarmUp; ++i) trainer.step();
  product.seconds();
  Measured m;
  OpTimer timer;
  for (int64_t i = 0; i < repeats; ++i) {
    {
      const OpTimer aside;  // the product is no part of the step
      m.products.push_back(product.seconds());
    }
    reset_peak(device);
    const int64_t made = memory_stats(device).allocations,
                  asked = device_runtime(device).system_allocations();
    m.steps.push_back(seconds_of([&] {
      timer.skip();
      trainer.step();
    }));
    m.allocations = std::max(m.allocations, memory_stats(device).allocations - made);
    m.system_allocations =
        std::max(m.system_allocations, device_runtime(device).system_allocations() - asked);
    m.peak_bytes = std::max(m.peak_bytes, memory_stats(device).peak_bytes - bytes_before);
  }
  m.peak_bytes += trainer.recorded_bytes();
  m.ops = timer.times();
  const auto seconds = [](const OpTime& op) { return op.forward_seconds + op.backward_seconds; };
  double rest = std::accumulate(m.steps.begin(), m.steps.end(), 0.0);
  for (const OpTime& op : m.ops) rest -= seconds(op);
  m.ops.push_back({.name = "other", .forward_seconds = std::max(rest, 0.0), .calls = repeats});
  std::ranges::sort(m.ops, std::greater(), seconds);
  return m;
}

void print_table(const Measured& m) {
  const double all = std::accumulate(m.steps.begin(), m.steps.end(), 0.0),
               repeats = static_cast<double>(m.steps.size());
  fmt::print("\n  {:<24}{:>8}{:>14}{:>14}{:>9}\n", "in a step, on average", "calls", "forward", "backward",
             "share");
  for (const OpTime& op : m.ops) {
    fmt::print("  {:<24}{:>8.0f}{:>11.3f} ms{:>11.3f} ms{:>7.1f} %\n", op.name,
               static_cast<double>(std::max(op.calls, op.backward_calls)) / repeats,
               1e3 * op.forward_seconds / repeats, 1e3 * op.backward_seconds / repeats,
               100 * (op.forward_seconds + op.backward_seconds) / all);
  }
}

json json_of(const Measured& m) {
  const double all = std::accumulate(m.steps.begin(), m.steps.end(), 0.0),
               repeats = static_cast<double>(m.steps.size());
  json ops = json::array();
  for (const OpTime& op : m.ops) {
    ops.push_back({{"name", op.name},
                   {"calls", static_cast<double>(op.calls) / repeats},
                   {"backward_calls", static_cast<double>(op.backward_calls) / repeats},
                   {"forward_seconds", op.forward_seconds / repeats},
                   {"backward_seconds", op.backward_seconds / repeats},
                   {"share", (op.forward_seconds + op.backward_seconds) / all}});
  }
  return ops;
}

void bench_train(const TrainBench& o) {
  check<ValueError>(o.repeats >= 1, "--repeats {}: at least 1", o.repeats);
  const DeviceGuard device = o.compute.use_device();
  TrainConfig config = o.step.config();
  config.head.gradient_filter = o.gradient_filter;
  config.steps = kWarmUp + o.repeats;
  const ModelConfig& model = config.model;
  ReferenceProduct product(config.dtype);
  const int64_t before = memory_stats(default_device()).live_bytes;
  const MemoryPlan plan = MemoryPlanner(config, {.recorded = o.capture}).plan();
  Trainer trainer(config, random_tokens(config, config.steps));
  if (o.capture) trainer.capture_steps();
  const Measured m = measure(trainer, product, o.repeats, before);

  const int64_t tokens = config.batch_size * model.n_positions;
  const double step = median(m.steps), rate = product.flops() / median(m.products),
               floor = product_flops(trainer.model(), config.batch_size) / rate;
  if (o.as_json) {
    fmt::print("{}\n", json({{"n_layer", model.n_layer},
                             {"n_head", model.n_head},
                             {"n_embd", model.n_embd},
                             {"context", model.n_positions},
                             {"vocab_size", model.vocab_size},
                             {"capture", o.capture},
                             {"batch_size", config.batch_size},
                             {"parameters", trainer.model().parameter_count()},
                             {"step_seconds", step},
                             {"tokens_per_second", static_cast<double>(tokens) / step},
                             {"floor_share", floor / step},
                             {"product_flops_per_second", rate},
                             {"peak_bytes", m.peak_bytes},
                             {"planned_bytes", plan.peak},
                             {"allocations_per_step", m.allocations},
                             {"system_allocations_per_step", m.system_allocations},
                             {"ops", json_of(m)}})
                           .dump());
    return;
  }
  fmt::print(
      "{} layers, {} heads, width {}, vocabulary {}: {} parameters; {} x {} tokens a step; medians of {}\n",
      model.n_layer, model.n_head, model.n_embd, format_count(model.vocab_size),
      format_count(trainer.model().parameter_count()), config.batch_size, model.n_positions, o.repeats);
  fmt::print("  {:<34}{:>9.3f} s\n", "a step", step);
  fmt::print("  {:<34}{:>9}\n", "tokens a second",
             format_count(std::llround(static_cast<double>(tokens) / step)));
  fmt::print("  {:<34}{:>9.3f} s at {:.0f} GFLOP/s\n", "the matrix products alone", floor, rate / 1e9);
  fmt::print("  {:<34}{:>9.2f}\n", "share of the time that they take", floor / step);
  fmt::print("  {:<34}{:>11}, {} planned\n", "memory at its peak", format_bytes(m.peak_bytes),
             format_bytes(plan.peak));
  fmt::print("  {:<34}{:>9}, {} of them from the system\n", "tensors made in a step",
             format_count(m.allocations), format_count(m.system_allocations));
  print_table(m);
}

}  // namespace

void add_bench_train(Command bench) {
  Command train = bench.add_command("train", "A training step of a GPT: forward, backward and optimizer");
  const auto options = std::make_shared<TrainBench>();
  options->step.add_options(train);
  train.add_option("--head-gradient-filter", options->gradient_filter, "as `train` takes it").show_default();
  train.add_option("--repeats", options->repeats, "how often; medians are printed").show_default();
  options->compute.add_to(train);
  train.add_flag("--capture", options->capture, "as `train` takes it; its operations are not told apart");
  train.add_flag("--json", options->as_json, "print one JSON object");
  train.footer(
      "A device works on while the program asks it for more: CUDA_LAUNCH_BLOCKING=1 makes the table tell "
      "its\n"
      "operations apart, and the step slower.\n\n"
      "The share counts the products with weights, the head's, and half of attention's, three times for "
      "forward\n"
      "and backward, at the rate that one large product reaches in the same run. linear_cross_entropy "
      "stands\n"
      "under forward: it makes its gradients there.\n\n"
      "Example:\n  tapehead bench train --preset gpt2-124m --context 64 --n-layer 6");
  train.callback([=] { bench_train(*options); });
}

}  // namespace tapehead
