// tapehead train-head: a vocabulary head, or any classifier of very many classes, on features made elsewhere.
#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "tapehead/core/file.h"
#include "tapehead/core/memory.h"
#include "tapehead/core/safetensors.h"
#include "tapehead/models/head_trainer.h"
#include "tapehead/tools/commands.h"
#include "tapehead/tools/compute_options.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/option_conditions.h"
#include "tapehead/tools/option_layers.h"
#include "tapehead/tools/run_folder.h"
#include "tapehead/tools/run_lock.h"
#include "tapehead/tools/run_session.h"
#include "tapehead/tools/training_options.h"

namespace tapehead {

namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

constexpr const char* kName = "train-head";

struct TrainHeadOptions {
  std::string in, out = "runs/head", resume, config_file;
  HeadTrainConfig config;
  int64_t log_every = 0;
  ComputeOptions compute;
};

// ---- data.json

void write_data_file(const RunFolder& run, const std::string& features) {
  const json data = {{"name", fs::path(features).filename().string()},
                     {"features", fs::absolute(features).lexically_normal().string()}};
  write_file_atomically(run.data(), data.dump(2) + "\n");
}

std::string read_data_file(const RunFolder& run) {
  const json data = fs::exists(run.data())
                        ? json::parse(read_file(run.data()), nullptr, /*allow_exceptions=*/false)
                        : json();
  const bool known = data.is_object() && data.contains("features") && data.at("features").is_string();
  check<ValueError>(known, "[train-head] {} does not tell where the features are: name their file",
                    run.data());
  return data.at("features");
}

// ---- The work

void print_summary(const json& summary) {
  if (!summary.contains("held_out_loss")) return;
  fmt::print("held out: {:.4f} nats a row, {:.2f} % right of {} rows\n",
             summary.at("held_out_loss").get<double>(), 100 * summary.at("held_out_accuracy").get<double>(),
             format_count(summary.at("held_out_rows").get<int64_t>()));
}

/// Trains what is left, and says what came of it.
void train(HeadTrainer& trainer, RunLock& lock, const RunFolder& run, const std::string& features,
           const TrainHeadOptions& options, const std::string& program) {
  const HeadTrainConfig& config = trainer.config();
  const Tensor& weight = trainer.parameters()[0].second;
  const std::string batch = format_count(config.batch_size);
  const RunSession session = {
      .folder = run,
      .lock = lock,
      .headline =
          fmt::format("head: {} classes of {} features{}; {} steps of {} rows", format_count(config.classes),
                      format_count(weight.size(1)), config.bias ? ", and a bias" : "",
                      format_count(config.steps - trainer.steps_made()), batch),
      .program = fmt::format("{} {}", shell_quote(program), kName),
      .subject = {.steps = config.steps,
                  .unit = "rows",
                  .dtype = weight.dtype(),
                  .device = weight.device(),
                  // Two products, each of two operations for every row and weight: features need no gradient.
                  .step_flops =
                      4.0 * static_cast<double>(config.batch_size) * static_cast<double>(weight.numel())},
      .log_every = options.log_every,
      .subtitle = fmt::format("{} · {} classes of {} features · {} rows a step",
                              fs::path(features).filename().string(), format_count(config.classes),
                              format_count(weight.size(1)), batch),
      .unit = "row"};
  const RunResult result = train_in_folder(trainer, session);
  if (!result.finished) return;
  write_safetensors(run.head(), trainer.parameters());
  json summary = {{"steps", result.step}};
  if (result.evaluation) {
    summary["held_out_loss"] = result.evaluation->loss;
    summary["held_out_accuracy"] = result.evaluation->accuracy;
    summary["held_out_rows"] = result.evaluation->tokens;
  }
  write_summary(run, summary);
  print_summary(summary);
  fmt::print("written to {}; at most {} of memory at once\n", run.head(),
             format_bytes(memory_stats(weight.device()).peak_bytes));
}

void start(TrainHeadOptions& options, Command command, const std::string& program) {
  const RunFolder run = {options.out};
  const GivenOptions given(command);
  if (!options.config_file.empty()) apply_config(command, options.config_file);
  check_contradictions(command);
  given.check_effects();
  options.config.validate();
  const DeviceGuard device = options.compute.use_device();
  check<ValueError>(!options.in.empty(),
                    "[train-head] there is nothing to train on; name a safetensors file "
                    "with features (rows, features) and targets (rows)");
  check<ValueError>(
      !options.out.ends_with(".safetensors"),
      "[train-head] --out {} names a file: it is the folder of a run, in which head.safetensors will stand",
      options.out);
  RunLock lock(run.path, kName);
  check<ValueError>(
      !fs::exists(run.checkpoint()),
      "[train-head] {} holds a run already; go on with --resume {}, or name another folder with --out",
      run.path, shell_quote(run.path));
  HeadTrainer trainer(options.config, LabelledFeatures::open(options.in));
  write_data_file(run, options.in);
  write_file_atomically(run.config(), resolved_config(command, {"config", "resume"}));
  train(trainer, lock, run, options.in, options, program);
}

void resume(const TrainHeadOptions& options, std::optional<int64_t> steps, const std::string& program) {
  const DeviceGuard device = options.compute.use_device();
  const RunFolder run = {options.resume};
  check<ValueError>(fs::exists(run.checkpoint()), "[train-head] {} holds no checkpoint to go on from",
                    run.path);
  RunLock lock(run.path, kName);
  const HeadTrainState state = read_head_state(run.checkpoint());
  if (state.progress.step >= steps.value_or(state.config.steps)) {
    if (const std::optional<json> summary = read_summary(run, state.progress.step)) {
      fmt::print("training: all {} steps are made already (skipped)\n", format_count(state.progress.step));
      print_summary(*summary);
      return;
    }
  }
  const std::string features = options.in.empty() ? read_data_file(run) : options.in;
  HeadTrainer trainer = HeadTrainer::resume(run.checkpoint(), LabelledFeatures::open(features));
  if (steps) trainer.set_steps(*steps);
  write_data_file(run, features);
  train(trainer, lock, run, features, options, program);
}

}  // namespace

void add_train_head(Command program) {
  Command command =
      program.add_command(kName, "Train a classifier with very many classes on features of your own");
  const auto options = std::make_shared<TrainHeadOptions>();
  HeadTrainConfig& config = options->config;
  command.show_defaults();
  command
      .add_option(
          "FEATURES", options->in,
          "safetensors file with features (rows, features) and targets (rows): classes, -100 for rows that "
          "do not count. With --resume only if the file was moved")
      .type_name("FILE");
  command.add_option("--out", options->out, "folder of the run").type_name("FOLDER");
  command
      .add_option("--config", options->config_file,
                  "a JSON file of options, as config.json in a run's folder; the command line goes before it")
      .type_name("FILE");
  command.add_option("--classes", config.classes, "0: the largest target and one");
  command.add_flag("--bias", config.bias, "with a bias");
  command.add_option("--batch-size", config.batch_size, "rows in a step");
  command.add_option("--held-out", config.held_out, "fraction of the rows to measure on; 0: none");
  command.add_option("--seed", config.seed, "of the rows' order");
  add_run_options(command, config);
  add_resume_option(command, options->resume, {"FEATURES"});
  command.add_option("--steps", config.steps, "how many, those before a resume included");
  options->compute.add_to(command);
  command.add_option("--log-every", options->log_every,
                     "print progress to standard error every so many steps; 0: never");
  command.footer(
      "The run's folder holds head.safetensors, with weight (classes, features) and bias, once all steps are "
      "made; the\n"
      "checkpoint that --resume goes on from; metrics.jsonl, for `tapehead report`; and loss.svg.\n\n"
      "Example:\n"
      "  tapehead train-head features.safetensors --classes 50257 --steps 2000 --lr 0.01 --out runs/head\n"
      "  tapehead train-head --resume runs/head --steps 4000");
  command.callback([=] {
    if (options->resume.empty()) {
      start(*options, command, program.name());
    } else {
      const bool steps = command.given("--steps");
      resume(*options, steps ? std::optional(options->config.steps) : std::nullopt, program.name());
    }
  });
}

}  // namespace tapehead
