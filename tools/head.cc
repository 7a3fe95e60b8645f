// tapehead head: linear_cross_entropy on tensors that the user brings.
#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include "tapehead/core/log.h"
#include "tapehead/core/memory.h"
#include "tapehead/core/safetensors.h"
#include "tapehead/tools/commands.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/head_arguments.h"

namespace tapehead {
namespace {

using json = nlohmann::ordered_json;

struct HeadOptions {
  std::string in, out, frozen, device = "cpu";
  HeadArguments head;
  int64_t backwards = 1;
  bool no_grad = false, stats = false, as_json = false;
  int threads = 0;
};

// ---- The case

/// What a case file may hold.
struct Case {
  Tensor input, weight, target, bias, class_weight, token_weight, grad_output;
};

bool has_non_finite(const Tensor& x) { return x.defined() && !device_runtime(x.device()).all_finite(x); }

Case read_case(const std::string& path, Device device) {
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
    *entry->second = file.tensor(name).to(device);
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

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

LinearCrossEntropyProblem problem_of(const Case& c, const LinearCrossEntropyArgs& args,
                                     int64_t counted_rows) {
  const auto wants = [](const Tensor& x) { return x.defined() && x.requires_grad(); };
  const int64_t F = c.input.size(-1), N = c.input.shape().without(-1).numel();
  return {.N = N,
          .F = F,
          .C = c.weight.size(0),
          .dtype = c.input.dtype(),
          .device = c.input.device(),
          .probabilities = is_floating(c.target.dtype()),
          .bias = args.bias.defined(),
          .input_grad = wants(c.input),
          .weight_grad = wants(c.weight),
          .bias_grad = wants(args.bias),
          .ignored_rows = N - counted_rows};
}

/// Rows that are not ignored and whose token weight is not 0.
int64_t count_rows(const Tensor& target, const Tensor& token_weight, std::optional<int64_t> ignore_index,
                   int64_t N) {
  const std::vector<double> weight =
      token_weight.defined() ? token_weight.to_vector<double>() : std::vector<double>();
  const std::vector<int64_t> index =
      is_floating(target.dtype()) ? std::vector<int64_t>() : target.to_vector<int64_t>();
  int64_t rows = 0;
  for (size_t r = 0; r < static_cast<size_t>(N); ++r) {
    rows += (weight.empty() || weight[r] != 0) && (index.empty() || index[r] != ignore_index.value_or(-100));
  }
  return rows;
}

json loss_json(const Tensor& loss) {
  if (loss.dim() == 0) return loss.item();
  return loss.to_vector<double>();
}

void check_flags(const HeadOptions& o) {
  check<ValueError>(o.backwards >= 0, "--backward {}: the number of backwards is not negative", o.backwards);
  check<ValueError>(o.threads >= 0, "--threads {}: it is a number of threads, or 0 for all", o.threads);
}

void run(const HeadOptions& o, bool backwards_given) {
  check_flags(o);
  check<ValueError>(!o.no_grad || !backwards_given || o.backwards == 0,
                    "--no-grad and --backward {} contradict each other", o.backwards);
  check<ValueError>(!o.no_grad || o.frozen.empty(),
                    "--no-grad and --frozen contradict each other: without gradients all is frozen");
  if (o.threads > 0) omp_set_num_threads(o.threads);
  const FrozenTensors frozen = FrozenTensors::parse(o.frozen);
  Case c = read_case(o.in, parse_device(o.device));
  LinearCrossEntropyArgs args = o.head.args();
  args.bias = c.bias;
  args.class_weight = c.class_weight;
  args.token_weight = c.token_weight;
  check<ValueError>(!frozen.bias || c.bias.defined(), "--frozen names bias, and {} has none", o.in);

  const int64_t backwards = o.no_grad ? 0 : o.backwards;
  if (backwards > 0) {
    const auto thaw = [](Tensor& x, bool is_frozen) {
      if (x.defined() && is_floating(x.dtype())) x.set_requires_grad(!is_frozen);
    };
    thaw(c.input, frozen.input);
    thaw(c.weight, frozen.weight);
    thaw(c.bias, frozen.bias);
    args.bias = c.bias;
  }
  for (const auto& [name, tensor] : {std::pair("input", c.input), std::pair("weight", c.weight)}) {
    if (has_non_finite(tensor))
      warn_once(std::string("head/") + name, fmt::format("{} holds a NaN or an infinity", name));
  }

  CrossEntropyStats stats;
  CrossEntropyStats* const wanted = o.stats ? &stats : nullptr;
  args.stats = wanted;
  reset_peak(c.input.device());
  const int64_t before = memory_stats(c.input.device()).live_bytes;
  auto start = std::chrono::steady_clock::now();
  const Tensor loss = linear_cross_entropy(c.input, c.weight, c.target, args);
  const double forward_seconds = seconds_since(start);

  double backward_seconds = 0;
  if (backwards > 0 && loss.requires_grad()) {
    Tensor upstream =
        c.grad_output.defined() ? c.grad_output : Tensor::full(loss.shape(), 1, loss.dtype(), loss.device());
    start = std::chrono::steady_clock::now();
    for (int64_t k = 0; k < backwards; ++k) {
      for (Tensor* x : {&c.input, &c.weight, &c.bias}) {
        if (x->defined() && x->requires_grad()) x->set_grad({});
      }
      backward(loss, upstream, /*retain_graph=*/k + 1 < backwards);
    }
    backward_seconds = seconds_since(start) / static_cast<double>(backwards);
  }
  const int64_t peak = memory_stats(c.input.device()).peak_bytes - before;

  const std::vector<Warning> warnings = issued_warnings();
  const bool fell_back = std::any_of(warnings.begin(), warnings.end(), [](const Warning& w) {
    return w.key.starts_with("linear_cross_entropy/");
  });
  const bool chunked = args.options && !fell_back;
  json result = {{"path", chunked ? "chunked" : "reference"},
                 {"options", nullptr},
                 {"chunks", nullptr},
                 {"loss", loss_json(loss)},
                 {"plan_bytes", nullptr}};
  if (c.weight.dim() == 2) {
    const int64_t counted =
        count_rows(c.target, c.token_weight, args.ignore_index, c.input.shape().without(-1).numel());
    const LinearCrossEntropyPlan plan = plan_linear_cross_entropy(problem_of(c, args, counted), args);
    result["plan_bytes"] = peak_bytes(chunked ? plan.chunked : plan.reference);
    if (chunked) {
      result["options"] = to_json(plan.options);
      result["chunks"] = plan.chunks.size();
    }
  }
  result["peak_bytes"] = peak;
  result["forward_seconds"] = forward_seconds;
  result["backward_seconds"] = backward_seconds;
  result["warnings"] = json::array();
  for (const Warning& w : warnings) result["warnings"].push_back(w.message);
  if (wanted) {
    result["stats"] = {{"rows", stats.rows},
                       {"correct_rows", stats.correct_rows},
                       {"loss_sum", stats.loss_sum},
                       {"z_loss", stats.z_loss}};
  }

  if (!o.out.empty()) {
    std::vector<std::pair<std::string, Tensor>> tensors = {{"loss", loss.detach()}};
    const auto add = [&](const char* name, const Tensor& t) {
      if (t.defined()) tensors.emplace_back(name, t);
    };
    add("grad_input", c.input.grad());
    add("grad_weight", c.weight.grad());
    if (c.bias.defined()) add("grad_bias", c.bias.grad());
    add("lse", stats.lse);
    add("target_logprob", stats.target_logprob);
    add("entropy", stats.entropy);
    add("correct", stats.correct);
    write_safetensors(o.out, tensors);
  }

  if (o.as_json) {
    fmt::print("{}\n", result.dump());
    return;
  }
  if (loss.dim() == 0) {
    fmt::print("loss {:.9g}\n", loss.item());
  } else {
    fmt::print("losses of {} rows\n", format_count(loss.numel()));
  }
  fmt::print("{} path, ", result["path"].get<std::string>());
  if (chunked) fmt::print("{} chunks, ", format_count(result["chunks"].get<int64_t>()));
  fmt::print("at most {} at once; forward {:.3f} s, backward {:.3f} s\n", format_bytes(peak), forward_seconds,
             backward_seconds);
  if (wanted) {
    fmt::print("{} rows, {} predicted right\n", format_count(stats.rows), format_count(stats.correct_rows));
  }
  if (!o.out.empty()) fmt::print("written to {}\n", o.out);
}

}  // namespace

void add_head(CLI::App& program) {
  CLI::App* head = program.add_subcommand("head", "Run linear_cross_entropy on tensors of your own");
  const auto options = std::make_shared<HeadOptions>();
  head->add_option("IN", options->in,
                   "safetensors file with input, weight, target, and optionally bias, class_weight, "
                   "token_weight, grad_output")
      ->type_name("FILE")
      ->required();
  options->head.add_options(*head);
  head->add_option("--frozen", options->frozen, "tensors that get no gradient: input, weight, bias")
      ->type_name("NAME[,NAME]");
  head->add_flag("--no-grad", options->no_grad, "the loss alone");
  CLI::Option* backwards = head->add_option("--backward", options->backwards,
                                            "so many backwards; the gradients are those of the last")
                               ->capture_default_str();
  head->add_flag("--stats", options->stats,
                 "also lse, log-probability of the target, entropy and hits of each row");
  head->add_option("--device", options->device, "cpu or cuda")->capture_default_str();
  head->add_option("--threads", options->threads, "processor threads; 0: all")->capture_default_str();
  head->add_option("--out", options->out,
                   "safetensors file for loss, grad_input, grad_weight, grad_bias and statistics")
      ->type_name("FILE");
  head->add_flag("--json", options->as_json, "print one JSON object");
  head->footer(
      "Example:\n  tapehead head case.safetensors --chunking-method budget:64MiB --stats --out "
      "result.safetensors");
  head->callback([=] { run(*options, backwards->count() > 0); });
}

}  // namespace tapehead
