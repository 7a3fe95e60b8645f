// tapehead compare-backends: whether a device computes what the CPU does, operation by operation.
#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "tapehead/core/tape_observer.h"
#include "tapehead/models/checkpoint.h"
#include "tapehead/models/step_comparison.h"
#include "tapehead/tools/commands.h"
#include "tapehead/tools/compute_options.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/progress_line.h"
#include "tapehead/tools/run_folder.h"
#include "tapehead/tools/step_arguments.h"

namespace tapehead {
namespace {

using json = nlohmann::ordered_json;

struct CompareOptions {
  std::string run, optimizer = "adamw";
  StepArguments step;
  bool recompute = false, as_json = false;
  ComputeOptions compute{"cuda"};
};

/// A model and what a step of it is.
struct Case {
  TrainConfig config;
  std::unique_ptr<LanguageModel> model;
};

Case make_case(const CompareOptions& o) {
  Case c;
  if (o.run.empty()) {
    c.config = o.step.config();
    c.config.optimizer.name = o.optimizer;
    c.config.recompute_activations = o.recompute;
    c.model = make_model(c.config.model, c.config.seed, c.config.dtype);
    return c;
  }
  LoadedModel loaded = load_model(RunFolder{o.run}.checkpoint());
  c.config = loaded.state.config;
  c.config.batch_size = o.step.batch_size.value_or(c.config.micro_batch());
  c.config.micro_batch_size = 0;
  c.model = std::move(loaded.model);
  return c;
}

/// Shows how far the devices are.
class Progress final : public TapeObserver {
 public:
  void on_result(const char*, Tensor& result, std::span<const Tensor>) override { count(result); }
  void on_gradient(const char*, size_t, Tensor& sum) override { count(sum); }

 private:
  void count(const Tensor& value) {
    ++values_;
    if (line_.due()) line_.show(fmt::format("{}: {} values", value.device(), format_count(values_)));
  }

  ProgressLine line_;
  int64_t values_ = 0;
};

// ---- What came of it

std::string part_of(const Difference& d) {
  return d.input ? fmt::format("gradient of input {}", *d.input) : "result";
}

/// The differences of one operation's results, or of the gradients of one of its inputs.
struct Kind {
  int64_t values = 0;
  double tolerance = 0;
  Difference worst;
};

struct Findings {
  int64_t longest_sum;
  const Difference* first = nullptr;  // of those that are too far; null: there is none
  std::vector<Kind> kinds = {};       // the worst first, by its tolerance

  double tolerance(const Difference& d) const { return step_tolerance(d.dtype, longest_sum); }
};

Findings find(const std::vector<Difference>& differences, const TrainConfig& config) {
  Findings f{.longest_sum = longest_sum(config)};
  for (const Difference& d : differences) {
    const double tolerance = f.tolerance(d);
    if (!f.first && d.error > tolerance) f.first = &d;
    const auto same = [&](const Kind& k) { return k.worst.op == d.op && k.worst.input == d.input; };
    auto kind = std::ranges::find_if(f.kinds, same);
    if (kind == f.kinds.end()) kind = f.kinds.insert(kind, {.tolerance = tolerance, .worst = d});
    ++kind->values;
    if (d.error / tolerance <= kind->worst.error / kind->tolerance) continue;
    kind->worst = d;
    kind->tolerance = tolerance;
  }
  std::ranges::stable_sort(f.kinds, std::greater(),
                           [](const Kind& k) { return k.worst.error / k.tolerance; });
  return f;
}

std::string describe(const Difference& d) {
  const std::string which =
      d.name.empty() ? fmt::format("call {}", d.call) : fmt::format("tensor {}", d.name);
  return fmt::format("{}, {}, {}, {} of shape {}", d.op, part_of(d), which, d.dtype, d.shape);
}

json to_json(const Difference& d, double tolerance) {
  json object = {{"op", d.op},       {"input", nullptr},         {"call", d.call},
                 {"name", d.name},   {"shape", d.shape.sizes()}, {"dtype", name(d.dtype)},
                 {"error", d.error}, {"tolerance", tolerance}};
  if (d.input) object["input"] = *d.input;
  return object;
}

json to_json(const Findings& f, const CompareOptions& o, size_t values) {
  json result = {{"device", name(o.compute.device())},
                 {"agrees", f.first == nullptr},
                 {"first", nullptr},
                 {"values", values},
                 {"longest_sum", f.longest_sum},
                 {"worst", json::array()}};
  if (f.first) result["first"] = to_json(*f.first, f.tolerance(*f.first));
  for (const Kind& k : f.kinds) {
    json object = to_json(k.worst, k.tolerance);
    object["values"] = k.values;
    result["worst"].push_back(object);
  }
  return result;
}

void print_table(const Findings& f) {
  fmt::print("\n  {:<30}{:<22}{:>8}{:>13}{:>12}  {}\n", "operation", "what", "values", "worst error",
             "tolerance", "of");
  for (const Kind& k : f.kinds) {
    const Difference& d = k.worst;
    fmt::print("  {:<30}{:<22}{:>8}{:>13.2e}{:>12.2e}  {} {}{}\n", d.op, part_of(d), format_count(k.values),
               d.error, k.tolerance, d.dtype, d.shape, d.name.empty() ? "" : " " + d.name);
  }
}

// ---- The command

void compare(const CompareOptions& o) {
  {
    const DeviceGuard there = o.compute.use_device();  // or it is told only when the CPU has done its part
  }
  const Device host, device = o.compute.device();
  const Case c = make_case(o);
  const Dataset tokens = random_tokens(c.config, 1);
  const Batch batch = Windows(tokens, c.config.model.n_positions).read(0, c.config.batch_size);
  const std::vector<Difference> differences = [&] {
    const Progress progress;
    return compare_step(c.config, c.model->parameters(), batch, host, device);
  }();
  const Findings findings = find(differences, c.config);
  if (o.as_json) {
    fmt::print("{}\n", to_json(findings, o, differences.size()).dump());
  } else {
    fmt::print("{} of {} parameters in {}, {} x {} tokens: {} results and gradients on {} and on cpu\n",
               c.config.model.architecture, format_count(c.model->parameter_count()), name(c.config.dtype),
               c.config.batch_size, c.config.model.n_positions, format_count(std::ssize(differences)),
               device);
    print_table(findings);
  }
  if (findings.first) {
    fail<SystemError>(
        "[compare-backends] {} does not agree with cpu, first in {}: error {:.2e}, tolerance {:.2e}", device,
        describe(*findings.first), findings.first->error, findings.tolerance(*findings.first));
  }
  if (!o.as_json) fmt::print("\n{} agrees with cpu\n", device);
}

}  // namespace

void add_compare_backends(Command program) {
  Command command = program.add_command("compare-backends",
                                        "Find the operation that a device computes otherwise than the CPU");
  const auto options = std::make_shared<CompareOptions>();
  Option run = command.add_option("RUN", options->run,
                                  "folder of a run whose model to take; random weights if left out");
  options->step.add_options(command);
  command.add_option("--optimizer", options->optimizer, "adamw, sgd or muon").show_default();
  command.add_flag("--recompute-activations", options->recompute, "as `train` takes it");
  for (const char* name : {"--preset", "--architecture", "--n-layer", "--n-head", "--n-embd", "--context",
                           "--vocab-size", "--dtype", "--optimizer", "--recompute-activations"})
    run.excludes(name);
  options->compute.add_to(command);
  command.add_flag("--json", options->as_json, "print one JSON object");
  command.footer(
      "One training step on random tokens, forward, backward and update, runs on the CPU and then on the\n"
      "device. Every operation there begins with the CPU's numbers, so each is judged by itself. The error\n"
      "is ‖device - cpu‖ / ‖cpu‖ of a tensor; the tolerance in f32 is 8 √K 2⁻²⁴, where K is the longest sum\n"
      "in the model, and in bf16 that and a quarter of an epsilon, 2⁻⁹. The exit status is 1 where an error\n"
      "is larger. Products in bf16 that were made larger by 7e-4 of themselves, in a model of width 256,\n"
      "were named; by 6e-4 they were not.\n\n"
      "Example:\n"
      "  tapehead compare-backends --preset gpt2-124m --n-layer 2 --context 64 --dtype bf16\n"
      "  tapehead compare-backends runs/book --batch-size 2 --json");
  command.callback([=] { compare(*options); });
}

}  // namespace tapehead
