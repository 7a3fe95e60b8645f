// tapehead plan: what linear_cross_entropy will allocate, before it does.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "tapehead/core/byte_size.h"
#include "tapehead/core/file.h"
#include "tapehead/tools/commands.h"
#include "tapehead/tools/compute_options.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/head_arguments.h"
#include "tapehead/tools/memory_picture.h"

namespace tapehead {
namespace {

using json = nlohmann::ordered_json;

struct PlanOptions {
  LinearCrossEntropyProblem problem;
  std::string dtype = "f32", freeze, svg, fit;
  ComputeOptions compute;
  HeadArguments head;
  bool no_grad = false, stats = false, as_json = false;
};

// ---- As JSON

json to_json(const PassPlan& pass, const char* when) {
  json list = json::array();
  for (const PlannedBuffer& b : pass.buffers) {
    list.push_back({{"name", b.name},
                    {"pass", when},
                    {"dtype", name(b.dtype)},
                    {"shape", b.shape.sizes()},
                    {"bytes", b.bytes()},
                    {"lifetime", name(b.lifetime, std::string_view(when) == "backward")}});
  }
  return list;
}

json buffers_json(const PathPlan& path) {
  json list = to_json(path.forward, "forward");
  for (const json& b : to_json(path.backward, "backward")) list.push_back(b);
  return list;
}

// ---- As a table

void print_path(const char* title, const PathPlan& path) {
  fmt::print("{}\n", title);
  for (const auto& [when, pass] :
       {std::pair("forward", &path.forward), std::pair("backward", &path.backward)}) {
    if (pass->buffers.empty() && pass->peak_bytes == 0) continue;
    fmt::print("  {}\n", when);
    for (const PlannedBuffer& b : pass->buffers) {
      fmt::print("    {:<30}{:<6}{:<20}{:>12}  {}\n", b.name, name(b.dtype), b.shape.str(),
                 format_bytes(b.bytes()), name(b.lifetime, pass == &path.backward));
    }
    fmt::print("    {:<30}{:<26}{:>12}\n", "peak", "", format_bytes(pass->peak_bytes));
  }
}

// ---- What fits

struct Fit {
  std::string policy;
  bool recompute;
  int64_t rows;  ///< the most per chunk that fit; 0: none
  int64_t peak;  ///< with them, or with one
};

/// For each policy that differs for this dtype, with and without recompute: the largest power of two of rows
/// whose peak, gradients included, is at most `bytes`.
std::vector<Fit> fitting(const LinearCrossEntropyProblem& problem, const LinearCrossEntropyArgs& args,
                         int64_t bytes) {
  std::vector<Fit> fits;
  const bool half = is_half(problem.dtype);
  for (const char* policy : half ? std::vector{"accurate", "balanced", "compact"} : std::vector{"compact"}) {
    for (const bool recompute : {false, true}) {
      const auto peak = [&](int64_t rows) {
        LinearCrossEntropyArgs trial = args;
        trial.options = LinearCrossEntropyOptions({.batch_chunk_size = rows,
                                                   .acc_policy = policy,
                                                   .acc_dtype = half ? DType::f32 : problem.dtype,
                                                   .recompute = recompute});
        return plan_linear_cross_entropy(problem, trial).chunked.peak_bytes();
      };
      Fit fit = {policy, recompute, 0, peak(1)};
      for (int64_t rows = 1; rows <= std::max<int64_t>(problem.N, 1) && peak(rows) <= bytes; rows *= 2) {
        fit.rows = rows;
        fit.peak = peak(rows);
      }
      fits.push_back(fit);
    }
  }
  return fits;
}

void print_fits(const std::vector<Fit>& fits, int64_t reference, int64_t bytes) {
  fmt::print("what fits {}, gradients included:\n", format_bytes(bytes));
  for (const Fit& f : fits) {
    const std::string setting = fmt::format("--acc-policy {}{}", f.policy, f.recompute ? " --recompute" : "");
    if (f.rows > 0) {
      fmt::print("  {:<40} up to {} rows a chunk: {}\n", setting, format_count(f.rows), format_bytes(f.peak));
    } else {
      fmt::print("  {:<40} does not fit: {} with one row a chunk\n", setting, format_bytes(f.peak));
    }
  }
  fmt::print("  {:<40} {}: {}\n", "--reference", reference <= bytes ? "fits" : "does not fit",
             format_bytes(reference));
}

// ---- The command

void run(PlanOptions o) {
  LinearCrossEntropyProblem& p = o.problem;
  check<ValueError>(p.N >= 0 && p.F >= 1 && p.C >= 1,
                    "--rows {}, --features {}, --classes {}: rows are >= 0, the others >= 1", p.N, p.F, p.C);
  check<ValueError>(p.ignored_rows >= 0 && p.ignored_rows <= p.N,
                    "--ignored-rows {}: it is between 0 and the {} rows", p.ignored_rows, p.N);
  p.dtype = parse_input_dtype(o.dtype);
  p.device = o.compute.device();
  const FrozenTensors frozen = FrozenTensors::parse(o.freeze);
  check<ValueError>(!o.no_grad || o.freeze.empty(),
                    "--no-grad and --freeze contradict each other: without gradients all is frozen");
  check<ValueError>(!frozen.bias || p.bias, "--freeze names bias, which takes --bias");
  p.input_grad = !o.no_grad && !frozen.input;
  p.weight_grad = !o.no_grad && !frozen.weight;
  p.bias_grad = !o.no_grad && !frozen.bias;

  const LinearCrossEntropyArgs args = o.head.args();
  p.stats = o.stats;
  const LinearCrossEntropyPlan plan = plan_linear_cross_entropy(p, args);
  const int64_t reference = plan.reference.peak_bytes();
  std::vector<Fit> fits;
  const int64_t fit_bytes = o.fit.empty() ? 0 : parse_size(o.fit);
  if (!o.fit.empty()) fits = fitting(p, args, fit_bytes);

  const std::string title = fmt::format("{} rows, {} features, {} classes, {}", format_count(p.N),
                                        format_count(p.F), format_count(p.C), name(p.dtype));
  if (!o.svg.empty()) write_file_atomically(o.svg, memory_picture(title, plan));

  if (o.as_json) {
    json result = {{"options", to_json(plan.options)},
                   {"rows_per_chunk", plan.options.batch_chunk_size},
                   {"chunks", plan.chunks},
                   {"buffers", buffers_json(plan.chunked)},
                   {"forward_peak_bytes", plan.chunked.forward.peak_bytes},
                   {"backward_peak_bytes", plan.chunked.backward.peak_bytes},
                   {"reference_peak_bytes", reference},
                   {"reference_buffers", buffers_json(plan.reference)},
                   {"chunking_pays", plan.chunking_pays}};
    if (!o.fit.empty()) {
      result["fit"] = json::array();
      for (const Fit& f : fits) {
        result["fit"].push_back({{"acc_policy", f.policy},
                                 {"recompute", f.recompute},
                                 {"rows_per_chunk", f.rows},
                                 {"peak_bytes", f.peak}});
      }
    }
    fmt::print("{}\n", result.dump());
    return;
  }

  fmt::print("{}\n", title);
  fmt::print("{} chunks of {} rows; policy {}, arithmetic in {}\n\n", format_count(plan.chunks),
             format_count(plan.options.batch_chunk_size), name(plan.options.acc_policy),
             name(plan.options.acc_dtype));
  if (!o.head.reference) print_path("chunked", plan.chunked);
  print_path("reference: the whole logits", plan.reference);
  if (!o.head.reference) {
    fmt::print("\nat its peak the chunked path takes {}, the reference path {}\n",
               format_bytes(plan.chunked.peak_bytes()), format_bytes(reference));
  }
  if (!plan.chunking_pays)
    fmt::print(
        "chunking pays where rows >= features and classes > features; here the reference path is cheaper\n");
  if (!o.fit.empty()) print_fits(fits, reference, fit_bytes);
  if (!o.svg.empty()) fmt::print("picture written to {}\n", o.svg);
}

}  // namespace

void add_plan(Command program) {
  Command plan = program.add_command("plan", "Show what linear_cross_entropy will allocate");
  const auto options = std::make_shared<PlanOptions>();
  LinearCrossEntropyProblem& p = options->problem;
  plan.add_option("--rows", p.N, "rows of the input: tokens").required();
  plan.add_option("--features", p.F, "width of the input").required();
  plan.add_option("--classes", p.C, "classes: the vocabulary").required();
  plan.add_option("--dtype", options->dtype, "of the input: f64, f32, f16 or bf16").show_default();
  plan.add_flag("--probabilities", p.probabilities, "targets are class probabilities");
  plan.add_flag("--bias", p.bias, "with a bias");
  plan.add_option("--ignored-rows", p.ignored_rows, "rows that are ignored").show_default();
  options->head.add_options(plan);
  plan.add_option("--freeze", options->freeze, "tensors that get no gradient: input, weight, bias")
      .type_name("NAME[,NAME]");
  plan.add_flag("--no-grad", options->no_grad, "the loss alone");
  plan.add_flag("--stats", options->stats, "with statistics of each row");
  options->compute.add_device_to(plan);
  plan.add_option("--fit", options->fit, "also say which settings fit so much memory, as in 2GiB")
      .type_name("SIZE");
  plan.add_option("--svg", options->svg, "draw memory over the course of the op").type_name("FILE");
  plan.add_flag("--json", options->as_json, "print one JSON object");
  plan.footer(
      "Example:\n  tapehead plan --rows 8192 --features 2304 --classes 256000 --dtype bf16 --fit 8GiB --svg "
      "memory.svg");
  plan.callback([=] { run(*options); });
}

}  // namespace tapehead
