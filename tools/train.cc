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
#include "tapehead/tools/memory_trace.h"
#include "tapehead/tools/product_floor.h"
#include "tapehead/tools/run_data.h"
#include "tapehead/tools/run_session.h"
#include "tapehead/tools/sample_log.h"
#include "tapehead/tools/train_arguments.h"

namespace tapehead {

namespace {

using json = nlohmann::ordered_json;

// ---- What is printed

std::string describe(const Evaluation& evaluation, int64_t bytes) {
  std::string text = fmt::format("held-out loss: {:.3f} nats per token", evaluation.loss);
  if (bytes > 0) text += fmt::format(", {:.3f} bits per byte", bits_per_byte(evaluation, bytes));
  return text;
}

/// What a finished run leaves for people and for later calls.
json summarize(const RunResult& result, const HeadMemory& head, int64_t held_out_bytes) {
  json summary = {{"steps", result.step}};
  if (result.evaluation) {
    summary["held_out_loss"] = result.evaluation->loss;
    summary["held_out_tokens"] = result.evaluation->tokens;
    summary["held_out_bytes"] = held_out_bytes;
  }
  summary["head_memory"] = {{"peak_bytes", head.peak_bytes},
                            {"gradient_bytes", head.gradient_bytes},
                            {"full_logits_bytes", head.full_logits_bytes}};
  return summary;
}

void print_summary(const json& summary) {
  if (summary.contains("held_out_loss")) {
    const Evaluation evaluation = {.loss = summary.at("held_out_loss"),
                                   .tokens = summary.at("held_out_tokens")};
    fmt::print("{}\n", describe(evaluation, summary.at("held_out_bytes")));
  }
  const json& memory = summary.at("head_memory");
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

// ---- The work

/// Trains what is left, and says what came of it.
void train(Trainer& trainer, RunSession& session, const RunData& data, const MemoryPlan& plan,
           int64_t held_out_bytes, const TrainArguments& options) {
  const RunFolder& run = session.folder();
  const TrainConfig& config = trainer.config();
  const ModelConfig& model = config.model;
  if (options.capture) trainer.capture_steps();
  const std::string step_tokens = format_count(config.batch_size * model.n_positions);
  RunDescription description = {
      .headline = fmt::format("model: {} parameters; {} steps of {} tokens",
                              format_count(trainer.model().parameter_count()),
                              format_count(config.steps - trainer.steps_made()), step_tokens),
      .subject = {.steps = config.steps,
                  .unit = "tokens",
                  .dtype = config.dtype,
                  .device = trainer.model().device(),
                  .step_flops = product_flops(trainer.model(), config.batch_size)},
      .subtitle = fmt::format("{} · {} layers, width {}, context {}, vocabulary {} · {} tokens a step",
                              data.name, model.n_layer, model.n_embd, model.n_positions,
                              format_count(model.vocab_size), step_tokens),
      .held_out_bytes = held_out_bytes};
  std::optional<SampleLog> samples;
  if (!options.sample_prompts.empty()) {
    check<ValueError>(data.tokenizer.has_value(),
                      "[train] --sample-prompt needs a tokenizer, and {} has none", run.path);
    samples.emplace(run.samples(), trainer.progress().evaluated_step, options.sample_prompts,
                    *data.tokenizer);
    description.on_evaluation = [&](int64_t step) { samples->write(trainer.model(), step); };
  }
  if (trainer.steps_made() == 0) {
    description.on_step =
        count_first_step(run.memory(), plan, trainer.model().parameters(), {trainer.model().head_weight()});
  }
  const RunResult result = session.train(trainer, description);
  if (!result.finished) return;
  const json summary = summarize(result, trainer.head_memory(), held_out_bytes);
  session.write_summary(summary);
  print_summary(summary);
  fmt::print("written to {}: the model, metrics.jsonl, loss.svg\n", run.path);
}

int64_t held_out_bytes(const RunData& data) {
  return data.held_out && data.tokenizer ? target_bytes(*data.held_out, *data.tokenizer) : 0;
}

/// The checkpoint that --from means, and the run's folder around it.
std::pair<std::string, RunFolder> locate(const std::string& from) {
  if (std::filesystem::is_directory(from)) return {RunFolder{from}.checkpoint(), {from}};
  return {from, {std::filesystem::path(from).parent_path().string()}};
}

/// Takes model and tokenizer from where the weights come from, but the context from the command line, where
/// that may change; returns its checkpoint.
std::string adopt(TrainArguments& options, bool context_given) {
  if (options.from.empty()) return "";
  const auto [checkpoint, source] = locate(options.from);
  ModelConfig model = read_train_state(checkpoint).config.model;
  model.dropout = options.config.model.dropout;
  if (context_given) {
    check<ValueError>(
        model.architecture != "gpt2" || options.config.model.n_positions == model.n_positions,
        "[train] --context {}: a gpt2 has learnt its positions, and this one has {}; leave it out",
        options.config.model.n_positions, model.n_positions);
    model.n_positions = options.config.model.n_positions;
  }
  options.config.model = model;
  if (options.data.tokenizer.empty() && std::filesystem::exists(source.tokenizer()))
    options.data.tokenizer = source.tokenizer();
  return checkpoint;
}

void start(TrainArguments& options, const Command& command) {
  TrainConfig& config = options.config;
  options.settle(command);
  const DeviceGuard device = options.run.compute.use_device();
  const bool context_given = command.given("--context");
  const std::string from = adopt(options, context_given);
  check<ValueError>(options.data.any(),
                    "[train] there is nothing to train on; name a file or a folder with --data PATH");
  RunSession session(command, options.run);
  const RunFolder& run = session.folder();

  RunData data = prepare_data(run, options.data, config.model.n_positions);
  if (from.empty()) config.model.vocab_size = data.training.vocab_size();
  config.tokenizer = data.tokenizer ? "tokenizer" : "";
  const int64_t bytes = held_out_bytes(data);
  const MemoryPlan plan = report_memory(config, options.capture, options.run.memory_limit);
  write_memory(run.memory(), plan);
  Trainer trainer(config, std::move(data.training), std::move(data.held_out), from);
  // A context that was not given is the other model's.
  session.write_config(from.empty() || context_given ? std::vector<std::string>{}
                                                     : std::vector<std::string>{"context"});
  train(trainer, session, data, plan, bytes, options);
}

void resume(const TrainArguments& options, const Command& command) {
  const DeviceGuard device = options.run.compute.use_device();
  RunSession session(command, options.run);
  const RunFolder& run = session.folder();
  check_data(run, options.data);
  const TrainState state = read_train_state(run.checkpoint());
  const int64_t steps = command.given("--steps") ? options.config.steps : state.config.steps;
  if (const std::optional<json> summary = session.ended(state.progress.step, steps)) {
    print_summary(*summary);
    return;
  }
  RunData data = open_data(run);
  const int64_t bytes = held_out_bytes(data);
  const MemoryPlan plan = report_memory(state.config, options.capture, options.run.memory_limit);
  Trainer trainer = Trainer::resume(run.checkpoint(), std::move(data.training), std::move(data.held_out));
  trainer.set_steps(steps);
  train(trainer, session, data, plan, bytes, options);
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
  train.callback([=] { options->run.resume.empty() ? start(*options, train) : resume(*options, train); });
}

}  // namespace tapehead
