// tapehead train: from a text to a model, or on from where a run stopped.
#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "tapehead/core/error.h"
#include "tapehead/models/checkpoint.h"
#include "tapehead/models/target_bytes.h"
#include "tapehead/models/trainer.h"
#include "tapehead/tools/commands.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/memory_report.h"
#include "tapehead/tools/product_floor.h"
#include "tapehead/tools/run_data.h"
#include "tapehead/tools/sample_log.h"
#include "tapehead/tools/train_arguments.h"
#include "tapehead/tools/training_job.h"

namespace tapehead {

namespace {

using json = nlohmann::ordered_json;

// ---- What is printed

std::string describe(const Evaluation& evaluation, int64_t bytes) {
  std::string text = fmt::format("held-out loss: {:.3f} nats per token", evaluation.loss);
  if (bytes > 0) text += fmt::format(", {:.3f} bits per byte", bits_per_byte(evaluation, bytes));
  return text;
}

void print_head_memory(const json& memory) {
  const int64_t peak = memory.at("peak_bytes"), gradients = memory.at("gradient_bytes"),
                full_logits = memory.at("full_logits_bytes");
  if (peak == 0) return;
  const auto row = [](const char* what, const std::string& chunked, const std::string& full) {
    fmt::print("  {:<34}{:>20}{:>14}\n", what, chunked, full);
  };
  fmt::print("memory of the head in one step:\n");
  row("", "chunked, measured", "full logits");
  row("logits and their gradient", format_bytes(peak - gradients), format_bytes(full_logits));
  row("gradients of input and weight", format_bytes(gradients), format_bytes(gradients));
  row("together", format_bytes(peak), format_bytes(full_logits + gradients));
}

// ---- The job

/// The checkpoint that --from means, and the run's folder around it.
std::pair<std::string, RunFolder> locate(const std::string& from) {
  if (std::filesystem::is_directory(from)) return {RunFolder{from}.checkpoint(), {from}};
  return {from, {std::filesystem::path(from).parent_path().string()}};
}

class ModelTraining final : public TrainingJob {
 public:
  ModelTraining(Command command, TrainArguments& options)
      : TrainingJob(command, options.run, options.config), options_(options), config_(options.config) {}

 private:
  void settle() override;
  void adopt();
  void prepare_data(const RunFolder& folder) override;
  TrainingRun& begin(const RunFolder& folder) override;
  std::vector<std::string> options_to_leave_out() const override;

  int64_t read_checkpoint(const RunFolder& folder) override;
  void open_data(const RunFolder& folder) override;
  TrainingRun& go_on(const RunFolder& folder) override;

  MemoryPlan report_memory() const override;
  RunDescription describe() override;
  json finish(const RunFolder& folder, const RunResult& result) const override;
  void print_summary(const json& summary) const override;
  void print_places(const RunFolder& folder) const override;

  void set_data(RunData data);
  TrainingRun& prepare_trainer(const RunFolder& folder);

  TrainArguments& options_;
  TrainConfig& config_;
  bool context_given_ = false;
  std::string from_;             // the checkpoint of --from; empty: random weights
  std::optional<RunData> data_;  // its tokens go to the trainer
  int64_t held_out_bytes_ = 0;
  std::optional<Trainer> trainer_;
  int64_t steps_before_ = 0;  // made by earlier processes
  std::optional<SampleLog> samples_;
};

// ---- A new run

void ModelTraining::settle() {
  options_.settle(command_);
  context_given_ = command_.given("--context");
  if (!options_.from.empty()) adopt();
  check<ValueError>(options_.data.any(),
                    "[train] there is nothing to train on; name a file or a folder with --data PATH");
}

/// Takes model and tokenizer from where the weights come from, but the context from the command line, where
/// that may change.
void ModelTraining::adopt() {
  const auto [checkpoint, source] = locate(options_.from);
  ModelConfig model = read_train_state(checkpoint).config.model;
  model.dropout = config_.model.dropout;
  if (context_given_) {
    check<ValueError>(
        model.architecture != "gpt2" || config_.model.n_positions == model.n_positions,
        "[train] --context {}: a gpt2 has learnt its positions, and this one has {}; leave it out",
        config_.model.n_positions, model.n_positions);
    model.n_positions = config_.model.n_positions;
  }
  config_.model = model;
  if (options_.data.tokenizer.empty() && std::filesystem::exists(source.tokenizer()))
    options_.data.tokenizer = source.tokenizer();
  from_ = checkpoint;
}

void ModelTraining::prepare_data(const RunFolder& folder) {
  set_data(tapehead::prepare_data(folder, options_.data, config_.model.n_positions));
  if (from_.empty()) config_.model.vocab_size = data_->training.vocab_size();
  config_.tokenizer = data_->tokenizer ? "tokenizer" : "";
}

TrainingRun& ModelTraining::begin(const RunFolder& folder) {
  trainer_.emplace(config_, std::move(data_->training), std::move(data_->held_out), from_);
  return prepare_trainer(folder);
}

std::vector<std::string> ModelTraining::options_to_leave_out() const {
  if (from_.empty() || context_given_) return {};
  return {"context"};  // the other model's
}

// ---- A run that is there

int64_t ModelTraining::read_checkpoint(const RunFolder& folder) {
  check_data(folder, options_.data);
  const TrainState state = read_train_state(folder.checkpoint());
  config_ = state.config;
  return state.progress.step;
}

void ModelTraining::open_data(const RunFolder& folder) { set_data(tapehead::open_data(folder)); }

TrainingRun& ModelTraining::go_on(const RunFolder& folder) {
  trainer_.emplace(
      Trainer::resume(folder.checkpoint(), std::move(data_->training), std::move(data_->held_out)));
  return prepare_trainer(folder);
}

// ---- Either

/// And refuses what cannot be done with it, before a model is made.
void ModelTraining::set_data(RunData data) {
  check<ValueError>(
      options_.sample_prompts.empty() || data.tokenizer.has_value(),
      "[train] --sample-prompt needs a tokenizer, and the run has none: name one with --tokenizer");
  if (options_.capture) CapturedStep::check_possible(config_, default_device());
  data_ = std::move(data);
  if (data_->held_out && data_->tokenizer)
    held_out_bytes_ = target_bytes(*data_->held_out, *data_->tokenizer);
}

MemoryPlan ModelTraining::report_memory() const {
  return tapehead::report_memory(
      config_, {.recorded = options_.capture, .loaded = !from_.empty() || !options_.run.resume.empty()},
      options_.run.memory_limit);
}

TrainingRun& ModelTraining::prepare_trainer(const RunFolder& folder) {
  if (options_.capture) trainer_->capture_steps();
  steps_before_ = trainer_->steps_made();
  if (!options_.sample_prompts.empty()) {
    samples_.emplace(folder.samples(), trainer_->progress().evaluated_step, options_.sample_prompts,
                     *data_->tokenizer);
  }
  return *trainer_;
}

RunDescription ModelTraining::describe() {
  const TrainConfig& config = trainer_->config();
  const LanguageModel& model = trainer_->model();
  const std::string step_tokens = format_count(config.batch_size * config.model.n_positions);
  RunDescription description = {
      .headline =
          fmt::format("model: {} parameters; {} steps of {} tokens", format_count(model.parameter_count()),
                      format_count(config.steps - trainer_->steps_made()), step_tokens),
      .subject = {.steps = config.steps,
                  .unit = "tokens",
                  .dtype = config.dtype,
                  .device = model.device(),
                  .step_flops = product_flops(model, config.batch_size)},
      .subtitle = fmt::format("{} · {} layers, width {}, context {}, vocabulary {} · {} tokens a step",
                              data_->name, config.model.n_layer, config.model.n_embd,
                              config.model.n_positions, format_count(config.model.vocab_size), step_tokens),
      .held_out_bytes = held_out_bytes_,
      .parameters = model.parameters(),
      .of_head = {model.head_weight()}};
  if (samples_)
    description.on_evaluation = [this](int64_t step) { samples_->write(trainer_->model(), step); };
  return description;
}

json ModelTraining::finish(const RunFolder&, const RunResult& result) const {
  json summary = {{"steps", result.step}};
  if (result.evaluation) {
    summary["held_out_loss"] = result.evaluation->loss;
    summary["held_out_tokens"] = result.evaluation->tokens;
    summary["held_out_bytes"] = held_out_bytes_;
  }
  const HeadMemory head = trainer_->head_memory();
  summary["head_memory"] = {{"peak_bytes", head.peak_bytes},
                            {"gradient_bytes", head.gradient_bytes},
                            {"full_logits_bytes", head.full_logits_bytes}};
  return summary;
}

void ModelTraining::print_summary(const json& summary) const {
  if (summary.contains("held_out_loss")) {
    const Evaluation evaluation = {.loss = summary.at("held_out_loss"),
                                   .tokens = summary.at("held_out_tokens")};
    fmt::print("{}\n", tapehead::describe(evaluation, summary.at("held_out_bytes")));
  }
  print_head_memory(summary.at("head_memory"));
}

void ModelTraining::print_places(const RunFolder& folder) const {
  if (options_.capture && trainer_->steps_made() > steps_before_ && !trainer_->has_recorded())
    fmt::print("--capture recorded nothing: no step had as many targets as its contexts have room for\n");
  fmt::print("written to {}: the model, metrics.jsonl, loss.svg\n", folder.path);
}

}  // namespace

void add_train(Command program) {
  Command train = program.add_command("train", "Train a model on a text");
  const auto options = std::make_shared<TrainArguments>();
  options->add_options(train);
  train.footer(
      "Example:\n"
      "  tapehead train --data book.txt --out runs/book --n-layer 2 --n-embd 128 --steps 500\n"
      "  tapehead train --data book.txt=2 --data notes/=1 --out runs/both --document-mask\n"
      "  tapehead train --config runs/book/config.json --out runs/faster --lr 0.003\n"
      "  tapehead train --resume runs/book --steps 1000");
  train.callback([=] { ModelTraining(train, *options).run(); });
}

}  // namespace tapehead
