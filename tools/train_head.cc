// tapehead train-head: a vocabulary head, or any classifier with very many classes, on features computed elsewhere.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "tapehead/core/memory.h"
#include "tapehead/core/safetensors.h"
#include "tapehead/core/stopwatch.h"
#include "tapehead/models/head_trainer.h"
#include "tapehead/tools/commands.h"
#include "tapehead/tools/device_option.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/progress_line.h"
#include "tapehead/tools/stop_signal.h"
#include "tapehead/tools/threads_option.h"
#include "tapehead/tools/train_arguments.h"

namespace tapehead {

namespace {

struct TrainHeadOptions {
  std::string in, out = "head.safetensors";
  HeadTrainConfig config;
  int64_t log_every = 0;
  DeviceOption device;
};

void print_evaluation(const HeadTrainer& trainer) {
  const HeadEvaluation e = trainer.evaluate();
  fmt::print("held out: {:.4f} nats a row, {:.2f} % right of {} rows\n", e.loss,
             100 * static_cast<double>(e.correct_rows) / static_cast<double>(std::max<int64_t>(e.rows, 1)),
             format_count(e.rows));
}

void train_head(const TrainHeadOptions& options) {
  const DeviceGuard device = options.device.use();
  LabelledFeatures data = LabelledFeatures::open(options.in);
  const int64_t rows = data.features.size(0), features = data.features.size(1);
  HeadTrainer trainer(options.config, std::move(data));
  fmt::print("{} rows of {} features, {} classes; {} steps of {} rows\n", format_count(rows), features,
             format_count(trainer.config().classes), format_count(options.config.steps),
             format_count(options.config.batch_size));
  std::fflush(stdout);
  {
    StopSignal stop;
    ProgressLine progress;
    const Stopwatch stopwatch;
    for (int64_t step = 1; step <= options.config.steps && !stop.requested(); ++step) {
      const double loss = trainer.step();
      const bool logged = options.log_every > 0 && step % options.log_every == 0;
      if (!progress.due() && !logged) continue;
      const double rate = static_cast<double>(step) / stopwatch.seconds();
      const std::string line = fmt::format(
          "step {}/{}  loss {:.3f}  {} rows/s  {} left", step, options.config.steps, loss,
          format_count(static_cast<int64_t>(rate * static_cast<double>(options.config.batch_size))),
          format_duration(static_cast<double>(options.config.steps - step) / rate));
      logged ? progress.log(line) : progress.show(line);
    }
  }
  if (options.config.held_out > 0) print_evaluation(trainer);
  write_safetensors(options.out, trainer.parameters());
  fmt::print("written to {} after {} steps; at most {} of memory at once\n", options.out,
             format_count(trainer.steps_made()), format_bytes(memory_stats(default_device()).peak_bytes));
}

}  // namespace

void add_train_head(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "train-head", "Train a classifier with very many classes on features of your own");
  const auto options = std::make_shared<TrainHeadOptions>();
  HeadTrainConfig& config = options->config;
  command->option_defaults()->always_capture_default();
  command
      ->add_option(
          "FEATURES", options->in,
          "safetensors file with features (rows, features) and targets (rows): classes, -100 for rows that "
          "do not count")
      ->type_name("FILE")
      ->required();
  command->add_option("--out", options->out, "safetensors file for weight (classes, features) and bias")
      ->type_name("FILE");
  command->add_option("--classes", config.classes, "0: the largest target and one");
  command->add_flag("--bias", config.bias, "with a bias");
  command->add_option("--steps", config.steps, "how many");
  command->add_option("--batch-size", config.batch_size, "rows in a step");
  command->add_option("--held-out", config.held_out, "fraction of the rows to measure on; 0: none");
  command->add_option("--seed", config.seed, "of the rows' order");
  add_optimizer_options(*command, config.optimizer);
  add_schedule_options(*command, config.schedule, config.peak_lr, config.min_lr, config.warmup_steps);
  add_head_options(*command, config.head);
  command->add_option("--log-every", options->log_every,
                      "print progress to standard error every so many steps; 0: never");
  options->device.add_to(*command);
  add_threads_option(*command);
  command->footer(
      "Example:\n"
      "  tapehead train-head features.safetensors --classes 50257 --steps 2000 --lr 0.01 --out "
      "head.safetensors");
  command->callback([=] { train_head(*options); });
}

}  // namespace tapehead
