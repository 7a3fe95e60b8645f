// tapehead train: from a text to a model, or on from where a run stopped.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/models/checkpoint.h"
#include "tapehead/tools/commands.h"
#include "tapehead/tools/data_arguments.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/metrics.h"
#include "tapehead/tools/progress_line.h"
#include "tapehead/tools/run_folder.h"
#include "tapehead/tools/stop_signal.h"
#include "tapehead/tools/threads_option.h"

namespace tapehead {

namespace {

using json = nlohmann::ordered_json;

struct TrainOptions {
  DataOptions data;
  TrainConfig config{.save_interval = 250};
  std::string dtype = "f32";
  int64_t accumulate = 1;
  std::string out = "runs/train";
  std::string resume;
  int64_t log_every = 0;
};

// ---- Options

void add_model_options(CLI::App& train, ModelConfig& model) {
  for (CLI::Option* option : {
           train.add_option("--n-layer", model.n_layer, "transformer blocks"),
           train.add_option("--n-head", model.n_head, "attention heads in a block"),
           train.add_option("--n-embd", model.n_embd, "width"),
           train.add_option("--context", model.n_positions, "tokens that the model sees at once"),
           train.add_option("--dropout", model.dropout, "in [0, 1)"),
       }) {
    option->group("Model");
  }
}

void add_training_options(CLI::App& train, TrainOptions& options) {
  TrainConfig& config = options.config;
  for (CLI::Option* option : {
           train.add_option("--dtype", options.dtype,
                            "f32, or bf16: weights, activations and gradients of 16 bits"),
           train.add_option("--batch-size", config.batch_size, "contexts in a step"),
           train.add_option("--accumulate", options.accumulate,
                            "compute a step in so many parts: less memory, the same step"),
           train.add_option("--lr", config.peak_lr, "learning rate after the warm-up"),
           train.add_option("--min-lr", config.min_lr, "learning rate at the end of the cosine"),
           train.add_option("--warmup", config.warmup_steps, "steps of rising learning rate"),
           train.add_option("--weight-decay", config.optimizer.weight_decay, "AdamW's, on matrices alone"),
           train.add_option("--clip", config.clip_norm, "largest norm of the gradient; 0: no limit"),
           train.add_option("--eval-every", config.eval_interval,
                            "steps between held-out measurements; 0: at the end"),
           train.add_option("--save-every", config.save_interval, "steps between checkpoints; 0: at the end"),
           train.add_option("--seed", config.seed, "of initialisation, order and dropout"),
       }) {
    option->group("Training");
  }
}

void add_head_options(CLI::App& train, HeadConfig& head) {
  for (CLI::Option* option : {
           train.add_option("--head-chunking-method", head.chunking_method,
                            "how many rows of logits are held at once: throughput, auto, budget:SIZE, ..."),
           train.add_option("--head-batch-chunk-size", head.batch_chunk_size,
                            "or so many; 0: the method's choice"),
           train.add_option("--head-acc-policy", head.acc_policy, "auto, accurate, balanced or compact"),
           train.add_option("--head-label-smoothing", head.label_smoothing, "in [0, 1]"),
           train.add_option("--head-z-loss", head.z_loss, "coefficient of lse²"),
           train.add_option("--head-gradient-filter", head.gradient_filter,
                            "none; stochastic:TAU: a faster head, its gradient without bias; threshold:EPS"),
           train.add_flag("--head-recompute", head.recompute,
                          "less memory: backward computes the head again"),
       }) {
    option->group("Head: linear_cross_entropy (`tapehead plan --help` tells more)");
  }
}

// ---- What is printed

std::string describe(const StepMetrics& metrics, const TrainConfig& config, double tokens_per_second) {
  const double left = static_cast<double>((config.steps - metrics.step) * metrics.tokens) / tokens_per_second;
  return fmt::format("step {}/{}  loss {:.3f}  {} tokens/s  {} left", metrics.step, config.steps,
                     metrics.loss, format_count(static_cast<int64_t>(tokens_per_second)),
                     format_duration(left));
}

std::string describe(const Evaluation& evaluation, int64_t bytes) {
  std::string text = fmt::format("held-out loss: {:.3f} nats per token", evaluation.loss);
  if (bytes > 0) text += fmt::format(", {:.3f} bits per byte", bits_per_byte(evaluation, bytes));
  return text;
}

/// What a finished run leaves for people and for later calls.
json summarize(const RunResult& result, int64_t held_out_bytes) {
  json summary = {{"steps", result.step}};
  if (result.evaluation) {
    summary["held_out_loss"] = result.evaluation->loss;
    summary["held_out_tokens"] = result.evaluation->tokens;
    summary["held_out_bytes"] = held_out_bytes;
  }
  summary["head_memory"] = {{"peak_bytes", result.head.peak_bytes},
                            {"gradient_bytes", result.head.gradient_bytes},
                            {"full_logits_bytes", result.head.full_logits_bytes}};
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

void draw_loss(const RunFolder& run, const TrainConfig& config, const std::string& data_name) {
  write_file_atomically(run.loss_chart(), loss_chart(read_history(run.metrics()), config, data_name));
}

/// Trains what is left, with everything that goes on around it: history, progress, checkpoints, stopping.
void train(Trainer& trainer, const RunFolder& run, const std::string& data_name, int64_t held_out_bytes,
           const TrainOptions& options, const std::string& program) {
  StopSignal stop;
  const TrainConfig& config = trainer.config();
  fmt::print("model: {} parameters; {} steps of {} tokens\n", format_count(trainer.model().parameter_count()),
             format_count(config.steps - trainer.steps_made()),
             format_count(config.batch_size * config.model.n_positions));
  std::fflush(stdout);

  MetricsLog log(run.metrics(), trainer.steps_made());
  ProgressLine progress;
  int64_t tokens = 0;
  double seconds = 0;
  RunCallbacks callbacks;
  callbacks.checkpoint_path = run.checkpoint();
  callbacks.stop = &stop.requested();
  callbacks.on_step = [&](const StepMetrics& metrics) {
    log.add(metrics);
    tokens += metrics.tokens;
    seconds += metrics.seconds;
    if (!progress.due() && !(options.log_every > 0 && metrics.step % options.log_every == 0)) return;
    const std::string line = describe(metrics, config, static_cast<double>(tokens) / seconds);
    if (options.log_every > 0 && metrics.step % options.log_every == 0) {
      progress.clear();
      fmt::print(stderr, "{}\n", line);
    }
    progress.show(line);
  };
  callbacks.on_evaluation = [&](const Evaluation& evaluation) { log.add(evaluation, held_out_bytes); };
  const RunResult result = trainer.run(callbacks);
  progress.clear();
  draw_loss(run, config, data_name);

  if (!result.finished) {
    fmt::print("stopped after step {} of {}; all is saved. To go on:\n  {} train --resume {}\n", result.step,
               config.steps, shell_quote(program), shell_quote(run.path));
    stop.die();
    return;
  }
  const json summary = summarize(result, held_out_bytes);
  write_file_atomically(run.summary(), summary.dump(2) + "\n");
  print_summary(summary);
  fmt::print("written to {}: the model, metrics.jsonl, loss.svg\n", run.path);
}

int64_t held_out_bytes(const RunData& data) {
  return data.held_out && data.tokenizer ? target_bytes(*data.held_out, *data.tokenizer) : 0;
}

void start(TrainOptions& options, const std::string& program) {
  const RunFolder run = {options.out};
  TrainConfig& config = options.config;
  check<ValueError>(options.data.any(),
                    "[train] there is nothing to train on; name a file or a folder with --data PATH");
  check<ValueError>(
      !std::filesystem::exists(run.checkpoint()),
      "[train] {} holds a run already; go on with --resume {}, or name another folder with --out", run.path,
      shell_quote(run.path));
  check<ValueError>(options.accumulate >= 1, "[train] --accumulate is {}, but a step has at least 1 part",
                    options.accumulate);
  config.micro_batch_size = (config.batch_size + options.accumulate - 1) / options.accumulate;
  check<ValueError>(options.dtype == "f32" || options.dtype == "bf16",
                    "[train] --dtype {}: a model is trained in f32 or in bf16", options.dtype);
  config.dtype = parse_dtype(options.dtype);
  config.model.vocab_size = options.data.vocab_size;
  config.validate();
  config.document_mask = options.data.document_mask;

  RunData data = prepare_data(run, options.data, config.model.n_positions);
  config.model.vocab_size = data.training.vocab_size();
  config.tokenizer = data.tokenizer ? "tokenizer" : "";
  const int64_t bytes = held_out_bytes(data);
  Trainer trainer(config, std::move(data.training), std::move(data.held_out));
  train(trainer, run, data.name, bytes, options, program);
}

void resume(const TrainOptions& options, std::optional<int64_t> steps, const std::string& program) {
  const RunFolder run = {options.resume};
  check<ValueError>(std::filesystem::exists(run.checkpoint()), "[train] {} holds no checkpoint to go on from",
                    run.path);
  check_data(run, options.data);
  const TrainState state = read_train_state(run.checkpoint());
  if (state.step >= steps.value_or(state.config.steps) && std::filesystem::exists(run.summary())) {
    const json summary = json::parse(read_file(run.summary()), nullptr, /*allow_exceptions=*/false);
    // One of an earlier end, or a damaged one, is made anew below: there are no steps left, only the
    // evaluation.
    if (summary.is_object() && summary.value("steps", int64_t{0}) == state.step) {
      fmt::print("training: all {} steps are made already (skipped)\n", format_count(state.step));
      print_summary(summary);
      return;
    }
  }
  RunData data = open_data(run);
  const int64_t bytes = held_out_bytes(data);
  Trainer trainer = Trainer::resume(run.checkpoint(), std::move(data.training), std::move(data.held_out));
  if (steps) trainer.set_steps(*steps);
  train(trainer, run, data.name, bytes, options, program);
}

}  // namespace

void add_train(CLI::App& program) {
  CLI::App* train = program.add_subcommand("train", "Train a model on a text");
  const auto options = std::make_shared<TrainOptions>();
  train->option_defaults()->always_capture_default();
  train->add_option("--out", options->out, "folder of the run")->type_name("FOLDER");
  add_data_options(*train, options->data);
  add_model_options(*train, options->config.model);
  add_training_options(*train, *options);
  add_head_options(*train, options->config.head);
  // What describes a new run; sources are allowed, to make sure that they are the run's.
  CLI::Option* resume_option =
      train->add_option("--resume", options->resume, "go on with the run in this folder")
          ->type_name("FOLDER");
  for (CLI::Option* option : train->get_options()) {
    if (option != resume_option && option != train->get_help_ptr() && option->get_name() != "--text" &&
        option->get_name() != "--data") {
      resume_option->excludes(option);
    }
  }
  CLI::Option* steps =
      train->add_option("--steps", options->config.steps, "how many, those before a resume included");
  train->add_option("--log-every", options->log_every,
                    "print progress to standard error every so many steps; 0: never");
  add_threads_option(*train);
  train->footer(
      "Example:\n"
      "  tapehead train --data book.txt --out runs/book --n-layer 2 --n-embd 128 --steps 500\n"
      "  tapehead train --data book.txt=2 --data notes/=1 --out runs/both --document-mask\n"
      "  tapehead train --resume runs/book --steps 1000");
  train->callback([=, &program] {
    if (options->resume.empty()) {
      start(*options, program.get_name());
    } else {
      resume(*options, *steps ? std::optional(options->config.steps) : std::nullopt, program.get_name());
    }
  });
}

}  // namespace tapehead
