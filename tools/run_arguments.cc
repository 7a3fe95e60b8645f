#include "tapehead/tools/run_arguments.h"

#include <algorithm>
#include <vector>

#include "tapehead/tools/option_conditions.h"
#include "tapehead/tools/option_layers.h"

namespace tapehead {

static void add_optimizer_options(Command command, RunConfig& config) {
  OptimizerOptions& optimizer = config.optimizer;
  for (Option option : {
           command.add_option("--optimizer", optimizer.name,
                              "adamw, sgd, or, for a model's matrices, muon with AdamW for the rest"),
           command.add_option("--weight-decay", optimizer.weight_decay, "on matrices alone"),
           command.add_option("--beta1", optimizer.beta1, "AdamW's: of the mean of gradients"),
           command.add_option("--beta2", optimizer.beta2, "AdamW's: of the mean of their squares"),
           command.add_option("--epsilon", optimizer.epsilon, "AdamW's: added to the root of the second"),
           command.add_option("--momentum", optimizer.momentum, "of sgd and muon"),
           command.add_option("--nesterov", optimizer.nesterov, "of sgd and muon: true or false"),
           command.add_option(
               "--schedule", config.schedule,
               "of the learning rate: cosine, linear, constant, or wsd: warm-up, stable, decay"),
           command.add_option("--lr", config.peak_lr, "learning rate after the warm-up"),
           command.add_option("--min-lr", config.min_lr, "learning rate at the end"),
           command.add_option("--warmup", config.warmup_steps, "steps of rising learning rate"),
           command.add_option("--decay-steps", config.decay_steps,
                              "of the schedule wsd: how many fall at its end; 0: a tenth of all"),
           command.add_option("--clip", config.clip_norm, "largest norm of the gradient; 0: no limit"),
           command.add_option("--skip-z-score", config.skip_z_score,
                              "skip a step whose loss or gradient norm is so many standard deviations above "
                              "the mean of recent ones; 0: none"),
       }) {
    option.group("Optimizer");
  }
}

static void add_pauses(Command command, RunConfig& config) {
  for (Option option : {
           command.add_option("--eval-every", config.eval_interval,
                              "steps between held-out measurements; 0: at the end"),
           command.add_option("--save-every", config.save_interval,
                              "steps between checkpoints; 0: at the end"),
           command.add_option("--keep", config.keep, "numbered checkpoints that stay beside the latest"),
           command.add_flag("--keep-best", config.keep_best, "also the one of the lowest held-out loss"),
       }) {
    option.group("Training");
  }
}

static void add_head_options(Command command, HeadConfig& head) {
  for (Option option : {
           command.add_option("--head-chunking-method", head.chunking_method,
                              "how many rows of logits are held at once: throughput, auto, budget:SIZE, ..."),
           command.add_option("--head-batch-chunk-size", head.batch_chunk_size,
                              "or so many; 0: the method's choice"),
           command.add_option("--head-acc-policy", head.acc_policy, "auto, accurate, balanced or compact"),
           command.add_option("--head-label-smoothing", head.label_smoothing, "in [0, 1]"),
           command.add_option("--head-z-loss", head.z_loss, "coefficient of lse²"),
           command.add_option(
               "--head-gradient-filter", head.gradient_filter,
               "none; stochastic:TAU: a faster head, its gradient without bias; threshold:EPS"),
           command.add_flag("--head-recompute", head.recompute,
                            "less memory: backward computes the head again"),
       }) {
    option.group("Head: linear_cross_entropy (`tapehead plan --help` tells more)");
  }
}

static void add_resume_option(Command command, std::string& folder,
                              std::initializer_list<std::string> allowed) {
  const std::vector<Option> others = command.options();
  Option resume =
      command.add_option("--resume", folder, "go on with the run in this folder").type_name("FOLDER");
  for (Option option : others) {
    if (std::ranges::count(allowed, option.name()) == 0) resume.excludes(option);
  }
}

void RunArguments::add_folder_options(Command command) {
  command.add_option("--out", out, "folder of the run").type_name("FOLDER");
  command
      .add_option("--config", config_file,
                  "a JSON file of options, as config.json in a run's folder; the command line goes before it")
      .type_name("FILE");
}

void RunArguments::add_run_options(Command command, RunConfig& config,
                                   std::initializer_list<std::string> allowed) {
  config.save_interval = 250;
  add_pauses(command, config);
  add_optimizer_options(command, config);
  add_head_options(command, config.head);
  add_resume_option(command, resume, allowed);
  command.add_option("--steps", config.steps, "how many, those before a resume included");
  compute.add_to(command);
  memory_limit.add_to(command);
  command.add_option("--log-every", log_every,
                     "print progress to standard error every so many steps; 0: never");
}

void RunArguments::settle(Command command, const std::string& preset) {
  const GivenOptions given(command);
  if (!config_file.empty()) apply_config(command, config_file);
  check_contradictions(command);
  if (!preset.empty()) apply_preset(command, preset);
  given.check_effects();
  memory_limit.validate();
}

}  // namespace tapehead
