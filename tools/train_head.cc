// tapehead train-head: a vocabulary head, or any classifier of very many classes, on features made elsewhere.
#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "tapehead/core/file.h"
#include "tapehead/core/json.h"
#include "tapehead/core/memory.h"
#include "tapehead/core/safetensors.h"
#include "tapehead/models/head_trainer.h"
#include "tapehead/tools/commands.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/memory_report.h"
#include "tapehead/tools/run_arguments.h"
#include "tapehead/tools/training_job.h"

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

// ---- The job

class HeadTraining final : public TrainingJob {
 public:
  HeadTraining(Command command, TrainHeadOptions& options)
      : TrainingJob(command, options.run, options.config), options_(options) {}

 private:
  void settle() override;
  void prepare_data(const RunFolder& folder) override;
  TrainingRun& begin(const RunFolder& folder) override;

  int64_t read_checkpoint(const RunFolder& folder) override;
  void open_data(const RunFolder& folder) override;
  TrainingRun& go_on(const RunFolder& folder) override;

  MemoryPlan report_memory() const override;
  RunDescription describe() override;
  json finish(const RunFolder& folder, const RunResult& result) const override;
  void print_summary(const json& summary) const override;
  void print_places(const RunFolder& folder) const override;

  TrainHeadOptions& options_;
  LabelledFeatures data_;
  std::optional<HeadTrainer> trainer_;
};

// ---- A new run

void HeadTraining::settle() {
  options_.run.settle(command_);
  options_.config.validate();
  check<ValueError>(!options_.in.empty(),
                    "[train-head] there is nothing to train on; name a safetensors file "
                    "with features (rows, features) and targets (rows)");
  check<ValueError>(
      !options_.run.out.ends_with(".safetensors"),
      "[train-head] --out {} names a file: it is the folder of a run, in which head.safetensors will stand",
      options_.run.out);
}

void HeadTraining::prepare_data(const RunFolder&) {
  data_ = LabelledFeatures::open(options_.in);
  options_.config = with_classes(options_.config, data_);
}

TrainingRun& HeadTraining::begin(const RunFolder& folder) {
  trainer_.emplace(options_.config, data_);
  keep_features_path(folder, options_.in);
  return *trainer_;
}

// ---- A run that is there

int64_t HeadTraining::read_checkpoint(const RunFolder& folder) {
  const HeadTrainState state = read_head_state(folder.checkpoint());
  options_.config = state.config;
  return state.progress.step;
}

void HeadTraining::open_data(const RunFolder& folder) {
  if (options_.in.empty()) options_.in = kept_features_path(folder);
  data_ = LabelledFeatures::open(options_.in);
}

TrainingRun& HeadTraining::go_on(const RunFolder& folder) {
  trainer_.emplace(HeadTrainer::resume(folder.checkpoint(), data_));
  keep_features_path(folder, options_.in);  // it may have moved
  return *trainer_;
}

// ---- Either

MemoryPlan HeadTraining::report_memory() const {
  return tapehead::report_memory(options_.config, data_, options_.run.memory_limit);
}

RunDescription HeadTraining::describe() {
  const HeadTrainConfig& config = trainer_->config();
  const Tensor& weight = trainer_->parameters()[0].second;
  const std::string batch = format_count(config.batch_size);
  RunDescription description = {
      .headline =
          fmt::format("head: {} classes of {} features{}; {} steps of {} rows", format_count(config.classes),
                      format_count(weight.size(1)), config.bias ? ", and a bias" : "",
                      format_count(config.steps - trainer_->steps_made()), batch),
      .subject = {.steps = config.steps,
                  .unit = "rows",
                  .dtype = weight.dtype(),
                  .device = weight.device(),
                  // Two products, each of two operations for every row and weight: features need no gradient.
                  .step_flops =
                      4.0 * static_cast<double>(config.batch_size) * static_cast<double>(weight.numel())},
      .subtitle = fmt::format("{} · {} classes of {} features · {} rows a step", base_name(options_.in),
                              format_count(config.classes), format_count(weight.size(1)), batch),
      .unit = "row",
      .parameters = trainer_->parameters()};
  for (const auto& [name, p] : description.parameters) description.of_head.push_back(p);
  return description;
}

json HeadTraining::finish(const RunFolder& folder, const RunResult& result) const {
  write_safetensors(folder.head(), trainer_->parameters());
  json summary = {{"steps", result.step}};
  if (result.evaluation) {
    summary["held_out_loss"] = result.evaluation->loss;
    summary["held_out_accuracy"] = result.evaluation->accuracy;
    summary["held_out_rows"] = result.evaluation->tokens;
  }
  return summary;
}

void HeadTraining::print_summary(const json& summary) const {
  if (!summary.contains("held_out_loss")) return;
  fmt::print("held out: {:.4f} nats a row, {:.2f} % right of {} rows\n",
             summary.at("held_out_loss").get<double>(), 100 * summary.at("held_out_accuracy").get<double>(),
             format_count(summary.at("held_out_rows").get<int64_t>()));
}

void HeadTraining::print_places(const RunFolder& folder) const {
  fmt::print("written to {}; at most {} of memory at once\n", folder.head(),
             format_bytes(memory_stats(trainer_->parameters()[0].second.device()).peak_bytes));
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
  command.callback([=] { HeadTraining(command, *options).run(); });
}

}  // namespace tapehead
