// tapehead train-head: a vocabulary head, or any classifier of very many classes, on features made elsewhere.
#include <fmt/core.h>

#include <filesystem>
#include <memory>

#include "tapehead/core/file.h"
#include "tapehead/core/json.h"
#include "tapehead/core/memory.h"
#include "tapehead/core/safetensors.h"
#include "tapehead/models/head_trainer.h"
#include "tapehead/tools/commands.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/memory_report.h"
#include "tapehead/tools/memory_trace.h"
#include "tapehead/tools/run_arguments.h"
#include "tapehead/tools/run_session.h"

namespace tapehead {

namespace {

namespace fs = std::filesystem;
using json = Json;

struct TrainHeadOptions {
  std::string in;
  HeadTrainConfig config;
  RunArguments run{.out = "runs/head"};
};

// ---- data.json

void keep_features_path(const RunFolder& run, const std::string& features) {
  const json data = {{"name", base_name(features)},
                     {"features", fs::absolute(features).lexically_normal().string()}};
  write_file_atomically(run.data(), data.dump(2) + "\n");
}

std::string kept_features_path(const RunFolder& run) {
  const json data = find_json_object(run.data());
  const bool known = data.contains("features") && data.at("features").is_string();
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
void train(HeadTrainer& trainer, RunSession& session, const MemoryPlan& plan, const std::string& features) {
  const RunFolder& run = session.folder();
  const HeadTrainConfig& config = trainer.config();
  const Tensor& weight = trainer.parameters()[0].second;
  const std::string batch = format_count(config.batch_size);
  RunDescription description = {
      .headline =
          fmt::format("head: {} classes of {} features{}; {} steps of {} rows", format_count(config.classes),
                      format_count(weight.size(1)), config.bias ? ", and a bias" : "",
                      format_count(config.steps - trainer.steps_made()), batch),
      .subject = {.steps = config.steps,
                  .unit = "rows",
                  .dtype = weight.dtype(),
                  .device = weight.device(),
                  // Two products, each of two operations for every row and weight: features need no gradient.
                  .step_flops =
                      4.0 * static_cast<double>(config.batch_size) * static_cast<double>(weight.numel())},
      .subtitle = fmt::format("{} · {} classes of {} features · {} rows a step", base_name(features),
                              format_count(config.classes), format_count(weight.size(1)), batch),
      .unit = "row"};
  if (trainer.steps_made() == 0) {
    std::vector<Tensor> of_head;
    for (const auto& [name, p] : trainer.parameters()) of_head.push_back(p);
    description.on_step = count_first_step(run.memory(), plan, trainer.parameters(), of_head);
  }
  const RunResult result = session.train(trainer, description);
  if (!result.finished) return;
  write_safetensors(run.head(), trainer.parameters());
  json summary = {{"steps", result.step}};
  if (result.evaluation) {
    summary["held_out_loss"] = result.evaluation->loss;
    summary["held_out_accuracy"] = result.evaluation->accuracy;
    summary["held_out_rows"] = result.evaluation->tokens;
  }
  session.write_summary(summary);
  print_summary(summary);
  fmt::print("written to {}; at most {} of memory at once\n", run.head(),
             format_bytes(memory_stats(weight.device()).peak_bytes));
}

void start(TrainHeadOptions& options, const Command& command) {
  options.run.settle(command);
  options.config.validate();
  const DeviceGuard device = options.run.compute.use_device();
  check<ValueError>(!options.in.empty(),
                    "[train-head] there is nothing to train on; name a safetensors file "
                    "with features (rows, features) and targets (rows)");
  check<ValueError>(
      !options.run.out.ends_with(".safetensors"),
      "[train-head] --out {} names a file: it is the folder of a run, in which head.safetensors will stand",
      options.run.out);
  RunSession session(command, options.run);
  const LabelledFeatures data = LabelledFeatures::open(options.in);
  const HeadTrainConfig config = with_classes(options.config, data);
  const MemoryPlan plan = report_memory(config, data, options.run.memory_limit);
  HeadTrainer trainer(config, data);
  write_memory(session.folder().memory(), plan);
  keep_features_path(session.folder(), options.in);
  session.write_config();
  train(trainer, session, plan, options.in);
}

void resume(const TrainHeadOptions& options, const Command& command) {
  const DeviceGuard device = options.run.compute.use_device();
  RunSession session(command, options.run);
  const RunFolder& run = session.folder();
  const HeadTrainState state = read_head_state(run.checkpoint());
  const int64_t steps = command.given("--steps") ? options.config.steps : state.config.steps;
  if (const std::optional<json> summary = session.ended(state.progress.step, steps)) {
    print_summary(*summary);
    return;
  }
  const std::string features = options.in.empty() ? kept_features_path(run) : options.in;
  const LabelledFeatures data = LabelledFeatures::open(features);
  const MemoryPlan plan = report_memory(state.config, data, options.run.memory_limit);
  HeadTrainer trainer = HeadTrainer::resume(run.checkpoint(), data);
  trainer.set_steps(steps);
  keep_features_path(run, features);
  train(trainer, session, plan, features);
}

}  // namespace

void add_train_head(Command program) {
  Command command =
      program.add_command("train-head", "Train a classifier with very many classes on features of your own");
  const auto options = std::make_shared<TrainHeadOptions>();
  HeadTrainConfig& config = options->config;
  command.show_defaults_from_here();
  command
      .add_option(
          "FEATURES", options->in,
          "safetensors file with features (rows, features) and targets (rows): classes, -100 for rows that "
          "do not count. With --resume only if the file was moved")
      .type_name("FILE");
  options->run.add_folder_options(command);
  command.add_option("--classes", config.classes, "0: the largest target and one");
  command.add_flag("--bias", config.bias, "with a bias");
  command.add_option("--batch-size", config.batch_size, "rows in a step");
  command.add_option("--held-out", config.held_out, "fraction of the rows to measure on; 0: none");
  command.add_option("--seed", config.seed, "of the rows' order and split, and of the gradient filter");
  options->run.add_run_options(command, config, {"FEATURES"});
  command.footer(
      "The run's folder holds head.safetensors, with weight (classes, features) and bias, once all steps are "
      "made; the\n"
      "checkpoint that --resume goes on from; metrics.jsonl and memory.json, for `tapehead report`; and "
      "loss.svg.\n\n"
      "Example:\n"
      "  tapehead train-head features.safetensors --classes 50257 --steps 2000 --lr 0.01 --out runs/head\n"
      "  tapehead train-head --resume runs/head --steps 4000");
  command.callback(
      [=] { options->run.resume.empty() ? start(*options, command) : resume(*options, command); });
}

}  // namespace tapehead
