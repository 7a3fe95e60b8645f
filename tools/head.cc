// tapehead head: linear_cross_entropy on tensors that the user brings.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "tapehead/core/log.h"
#include "tapehead/core/memory.h"
#include "tapehead/core/safetensors.h"
#include "tapehead/tools/commands.h"
#include "tapehead/tools/compute_options.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/head_arguments.h"
#include "tapehead/tools/timing.h"

namespace tapehead {
namespace {

using json = nlohmann::ordered_json;

struct HeadOptions {
  std::string in, out, freeze;
  ComputeOptions compute;
  HeadArguments head;
  int64_t backwards = 1;
  bool no_grad = false, stats = false, as_json = false;
};

// ---- The case

/// What a case file may hold.
struct Case {
  Tensor input, weight, target, bias, class_weight, token_weight, grad_output;
};

bool has_non_finite(const Tensor& x) { return x.defined() && !device_runtime(x.device()).all_finite(x); }

Case read_case(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  Case c;
  const std::vector<std::pair<const char*, Tensor*>> known = {{"input", &c.input},
                                                              {"weight", &c.weight},
                                                              {"target", &c.target},
                                                              {"bias", &c.bias},
                                                              {"class_weight", &c.class_weight},
                                                              {"token_weight", &c.token_weight},
                                                              {"grad_output", &c.grad_output}};
  for (const std::string& name : file.names()) {
    const auto entry =
        std::find_if(known.begin(), known.end(), [&](const auto& k) { return k.first == name; });
    check<ValueError>(entry != known.end(),
                      "{} has a tensor \"{}\": a case holds input, weight, target, and may hold bias, "
                      "class_weight, token_weight, "
                      "grad_output",
                      path, name);
    *entry->second = file.tensor(name).to(default_device());
  }
  for (const auto& [name, tensor] : known) {
    const bool needed = tensor == &c.input || tensor == &c.weight || tensor == &c.target;
    check<ValueError>(!needed || tensor->defined(),
                      "{} has no tensor \"{}\": a case holds input, weight and target", path, name);
  }
  // Weights of the loss and its upstream gradient are the user's choice, never a computed overflow.
  for (const auto& [name, tensor] : {known[4], known[5], known[6]}) {
    check<ValueError>(!has_non_finite(*tensor), "{}: \"{}\" holds a NaN or an infinity", path, name);
  }
  return c;
}

// ---- The run

json loss_json(const Tensor& loss) {
  if (loss.dim() == 0) return loss.item();
  return loss.to_vector<double>();
}

void check_flags(const HeadOptions& o, const FrozenTensors& frozen, const Case& c, bool backwards_given) {
  check<ValueError>(o.backwards >= 0, "--backward {}: the number of backwards is not negative", o.backwards);
  check<ValueError>(!o.no_grad || !backwards_given || o.backwards == 0,
                    "--no-grad and --backward {} contradict each other", o.backwards);
  check<ValueError>(!o.no_grad || o.freeze.empty(),
                    "--no-grad and --freeze contradict each other: without gradients all is frozen");
  check<ValueError>(!frozen.bias || c.bias.defined(), "--freeze names bias, and {} has none", o.in);
}

/// What a run gave, beside the gradients that its tensors hold.
struct Outcome {
  Tensor loss;
  CrossEntropyStats stats;
  int64_t peak_bytes = 0;
  double forward_seconds = 0, backward_seconds = 0;
};

Outcome measure(Case& c, LinearCrossEntropyArgs args, int64_t backwards, bool stats) {
  Outcome outcome;
  if (stats) args.stats = &outcome.stats;
  const Device device = c.input.device();
  reset_peak(device);
  const int64_t before = memory_stats(device).live_bytes;
  outcome.forward_seconds =
      seconds_of([&] { outcome.loss = linear_cross_entropy(c.input, c.weight, c.target, args); });

  if (backwards > 0 && outcome.loss.requires_grad()) {
    const Tensor upstream = c.grad_output.defined()
                                ? c.grad_output
                                : Tensor::full(outcome.loss.shape(), 1, outcome.loss.dtype(), device);
    const double together = seconds_of([&] {
      for (int64_t k = 0; k < backwards; ++k) {
        for (Tensor* x : {&c.input, &c.weight, &c.bias}) {
          if (x->defined() && x->requires_grad()) x->set_grad({});
        }
        backward(outcome.loss, upstream, /*retain_graph=*/k + 1 < backwards);
      }
    });
    outcome.backward_seconds = together / static_cast<double>(backwards);
  }
  outcome.peak_bytes = memory_stats(device).peak_bytes - before;
  return outcome;
}

// ---- What it prints and writes

json describe(const Case& c, const LinearCrossEntropyArgs& args, const Outcome& outcome, bool stats) {
  const bool two_dimensional = c.weight.dim() == 2, chunked = args.options && two_dimensional;
  json result = {{"path", chunked ? "chunked" : "reference"},
                 {"options", nullptr},
                 {"chunks", nullptr},
                 {"loss", loss_json(outcome.loss)},
                 {"plan_bytes", nullptr}};
  if (two_dimensional) {
    LinearCrossEntropyProblem problem = problem_of(c.input, c.weight, c.target, args);
    problem.stats = stats;
    const LinearCrossEntropyPlan plan = plan_linear_cross_entropy(problem, args);
    result["plan_bytes"] = (chunked ? plan.chunked : plan.reference).peak_bytes();
    if (chunked) {
      result["options"] = to_json(plan.options);
      result["chunks"] = plan.chunks;
    }
  }
  result["peak_bytes"] = outcome.peak_bytes;
  result["forward_seconds"] = outcome.forward_seconds;
  result["backward_seconds"] = outcome.backward_seconds;
  result["warnings"] = json::array();
  for (const Warning& w : issued_warnings()) result["warnings"].push_back(w.message);
  if (args.filter_stats) result["gradient_filter"] = to_json(*args.filter_stats);
  if (stats) {
    result["stats"] = {{"rows", outcome.stats.rows},
                       {"correct_rows", outcome.stats.correct_rows},
                       {"loss_sum", outcome.stats.loss_sum},
                       {"z_loss", outcome.stats.z_loss}};
  }
  return result;
}

void write_results(const std::string& path, const Case& c, const Outcome& outcome) {
  std::vector<std::pair<std::string, Tensor>> tensors = {{"loss", outcome.loss.detach()}};
  const auto add = [&](const char* name, const Tensor& t) {
    if (t.defined()) tensors.emplace_back(name, t);
  };
  add("grad_input", c.input.grad());
  add("grad_weight", c.weight.grad());
  if (c.bias.defined()) add("grad_bias", c.bias.grad());
  add("lse", outcome.stats.lse);
  add("target_logprob", outcome.stats.target_logprob);
  add("entropy", outcome.stats.entropy);
  add("correct", outcome.stats.correct);
  write_safetensors(path, tensors);
}

void print_outcome(const Outcome& outcome, const json& result, bool stats) {
  if (outcome.loss.dim() == 0) {
    fmt::print("loss {:.9g}\n", outcome.loss.item());
  } else {
    fmt::print("losses of {} rows\n", format_count(outcome.loss.numel()));
  }
  fmt::print("{} path, ", result["path"].get<std::string>());
  if (!result["chunks"].is_null()) fmt::print("{} chunks, ", format_count(result["chunks"].get<int64_t>()));
  fmt::print("at most {} at once; forward {:.3f} s, backward {:.3f} s\n", format_bytes(outcome.peak_bytes),
             outcome.forward_seconds, outcome.backward_seconds);
  if (stats) {
    fmt::print("{} rows, {} predicted right\n", format_count(outcome.stats.rows),
               format_count(outcome.stats.correct_rows));
  }
}

// ---- The command

void run(const HeadOptions& o, bool backwards_given) {
  const DeviceGuard device = o.compute.use_device();
  const FrozenTensors frozen = FrozenTensors::parse(o.freeze);
  Case c = read_case(o.in);
  check_flags(o, frozen, c, backwards_given);
  const int64_t backwards = o.no_grad ? 0 : o.backwards;
  if (backwards > 0) {
    for (const auto& [x, is_frozen] : {std::pair(&c.input, frozen.input), std::pair(&c.weight, frozen.weight),
                                       std::pair(&c.bias, frozen.bias)}) {
      if (x->defined() && is_floating(x->dtype())) x->set_requires_grad(!is_frozen);
    }
  }
  for (const auto& [name, tensor] : {std::pair("input", c.input), std::pair("weight", c.weight)}) {
    if (has_non_finite(tensor))
      warn_once(std::string("head/") + name, fmt::format("{} holds a NaN or an infinity", name));
  }
  Generator filter_numbers;
  LinearCrossEntropyArgs args = o.head.args(filter_numbers);
  args.bias = c.bias;
  args.class_weight = c.class_weight;
  args.token_weight = c.token_weight;

  const Outcome outcome = measure(c, args, backwards, o.stats);
  if (!o.out.empty()) write_results(o.out, c, outcome);
  const json result = describe(c, args, outcome, o.stats);
  if (o.as_json) {
    fmt::print("{}\n", result.dump());
    return;
  }
  print_outcome(outcome, result, o.stats);
  if (!o.out.empty()) fmt::print("written to {}\n", o.out);
}

}  // namespace

void add_head(Command program) {
  Command head = program.add_command("head", "Run linear_cross_entropy on tensors of your own");
  const auto options = std::make_shared<HeadOptions>();
  head.add_option("IN", options->in,
                  "safetensors file with input, weight, target, and optionally bias, class_weight, "
                  "token_weight, grad_output")
      .type_name("FILE")
      .required();
  options->head.add_options(head);
  head.add_option("--freeze", options->freeze, "tensors that get no gradient: input, weight, bias")
      .type_name("NAME[,NAME]");
  head.add_flag("--no-grad", options->no_grad, "the loss alone");
  Option backwards = head.add_option("--backward", options->backwards,
                                     "so many backwards; the gradients are those of the last")
                         .show_default();
  head.add_flag("--stats", options->stats,
                "also lse, log-probability of the target, entropy and hits of each row");
  options->compute.add_to(head);
  head.add_option("--out", options->out,
                  "safetensors file for loss, grad_input, grad_weight, grad_bias and statistics")
      .type_name("FILE");
  head.add_flag("--json", options->as_json, "print one JSON object");
  head.footer(
      "Example:\n  tapehead head case.safetensors --chunking-method budget:64MiB --stats --out "
      "result.safetensors");
  head.callback([=] { run(*options, backwards.given()); });
}

}  // namespace tapehead
