#include "tapehead/tools/train_arguments.h"

#include <CLI/CLI.hpp>

#include "tapehead/core/error.h"
#include "tapehead/tools/data_arguments.h"
#include "tapehead/tools/option_layers.h"
#include "tapehead/tools/presets.h"

namespace tapehead {

namespace {

// ---- What there is

void add_model_options(CLI::App& train, ModelConfig& model) {
  for (CLI::Option* option : {
           train.add_option("--architecture", model.architecture, "gpt2 or llama"),
           train.add_option("--n-layer", model.n_layer, "transformer blocks"),
           train.add_option("--n-head", model.n_head, "attention heads in a block"),
           train.add_option("--n-kv-head", model.n_kv_head,
                            "of a llama: heads of keys and values; 0: one for each of queries"),
           train.add_option("--n-embd", model.n_embd, "width"),
           train.add_option("--n-inner", model.n_inner,
                            "width of the MLP; 0: 4 n-embd, of a llama 8/3 n-embd in multiples of 32"),
           train.add_option("--rope-theta", model.rope_theta, "of a llama: base of the rotary positions"),
           train.add_option("--tied-head", model.tied_head,
                            "of a llama: whether the head is the token embeddings, true or false"),
           train.add_option("--context", model.n_positions, "tokens that the model sees at once"),
           train.add_option("--dropout", model.dropout, "in [0, 1)"),
       }) {
    option->group("Model");
  }
}

void add_training_options(CLI::App& train, TrainArguments& arguments) {
  TrainConfig& config = arguments.config;
  for (CLI::Option* option : {
           train.add_option("--dtype", arguments.dtype,
                            "f32, or bf16: weights, activations and gradients of 16 bits"),
           train.add_option("--batch-size", config.batch_size, "contexts in a step"),
           train.add_option("--accumulate", arguments.accumulate,
                            "compute a step in so many parts: less memory, the same step"),
           train
               .add_option("--freeze", config.freeze,
                           "train all but the parameters with such names, as in 'transformer.h.0.*,*.bias'")
               ->type_name("PATTERNS"),
           train.add_flag("--recompute-activations", config.recompute_activations,
                          "less memory: backward runs each block again"),
           train.add_option("--clip", config.clip_norm, "largest norm of the gradient; 0: no limit"),
           train.add_option("--skip-z-score", config.skip_z_score,
                            "skip a step whose loss or gradient norm is so many standard deviations above "
                            "the mean of recent ones; 0: none"),
           train.add_option("--decay-steps", config.decay_steps,
                            "of the schedule wsd: how many fall at its end; 0: a tenth of all"),
           train.add_option("--eval-every", config.eval_interval,
                            "steps between held-out measurements; 0: at the end"),
           train.add_option("--save-every", config.save_interval, "steps between checkpoints; 0: at the end"),
           train.add_option("--keep", config.keep, "numbered checkpoints that stay beside the latest"),
           train.add_flag("--keep-best", config.keep_best, "also the one of the lowest held-out loss"),
           train.add_option("--seed", config.seed, "of initialisation, order and dropout"),
       }) {
    option->group("Training");
  }
}

}  // namespace

void add_schedule_options(CLI::App& command, std::string& name, double& peak, double& minimum,
                          int64_t& warmup) {
  for (CLI::Option* option : {
           command.add_option(
               "--schedule", name,
               "of the learning rate: cosine, linear, constant, or wsd: warm-up, stable, decay"),
           command.add_option("--lr", peak, "learning rate after the warm-up"),
           command.add_option("--min-lr", minimum, "learning rate at the end"),
           command.add_option("--warmup", warmup, "steps of rising learning rate"),
       }) {
    option->group("Optimizer");
  }
}

void add_optimizer_options(CLI::App& command, OptimizerOptions& optimizer) {
  for (CLI::Option* option : {
           command.add_option("--optimizer", optimizer.name,
                              "adamw, sgd, or muon: for matrices, AdamW for the rest"),
           command.add_option("--weight-decay", optimizer.weight_decay, "on matrices alone"),
           command.add_option("--beta1", optimizer.beta1, "AdamW's: of the mean of gradients"),
           command.add_option("--beta2", optimizer.beta2, "AdamW's: of the mean of their squares"),
           command.add_option("--epsilon", optimizer.epsilon, "AdamW's: added to the root of the second"),
           command.add_option("--momentum", optimizer.momentum, "of sgd and muon"),
           command.add_option("--nesterov", optimizer.nesterov, "of sgd and muon: true or false"),
       }) {
    option->group("Optimizer");
  }
}

void add_head_options(CLI::App& command, HeadConfig& head) {
  CLI::Option* method =
      command.add_option("--head-chunking-method", head.chunking_method,
                         "how many rows of logits are held at once: throughput, auto, budget:SIZE, ...");
  CLI::Option* rows = command.add_option("--head-batch-chunk-size", head.batch_chunk_size,
                                         "or so many; 0: the method's choice");
  for (CLI::Option* option : {
           method,
           rows,
           command.add_option("--head-acc-policy", head.acc_policy, "auto, accurate, balanced or compact"),
           command.add_option("--head-label-smoothing", head.label_smoothing, "in [0, 1]"),
           command.add_option("--head-z-loss", head.z_loss, "coefficient of lse²"),
           command.add_option(
               "--head-gradient-filter", head.gradient_filter,
               "none; stochastic:TAU: a faster head, its gradient without bias; threshold:EPS"),
           command.add_flag("--head-recompute", head.recompute,
                            "less memory: backward computes the head again"),
       }) {
    option->group("Head: linear_cross_entropy (`tapehead plan --help` tells more)");
  }
}

// ---- What goes together

namespace {

/// An option that means something under some settings of others alone.
struct Condition {
  const char* option;
  const char* needed;
  bool (*holds)(const TrainConfig&);
};

bool has_momentum(const TrainConfig& c) { return c.optimizer.name != "adamw"; }
bool has_moments(const TrainConfig& c) { return c.optimizer.name != "sgd"; }

bool is_llama(const TrainConfig& c) { return c.model.architecture == "llama"; }

constexpr Condition kConditions[] = {
    {"--n-kv-head", "--architecture llama", is_llama},
    {"--rope-theta", "--architecture llama", is_llama},
    {"--tied-head", "--architecture llama", is_llama},
    {"--decay-steps", "--schedule wsd", [](const TrainConfig& c) { return c.schedule == "wsd"; }},
    {"--min-lr", "a --schedule that falls", [](const TrainConfig& c) { return c.schedule != "constant"; }},
    {"--momentum", "--optimizer sgd or muon", has_momentum},
    {"--nesterov", "--optimizer sgd or muon", has_momentum},
    {"--beta1", "--optimizer adamw or muon", has_moments},
    {"--beta2", "--optimizer adamw or muon", has_moments},
    {"--epsilon", "--optimizer adamw or muon", has_moments},
    {"--head-chunking-method", "--head-batch-chunk-size 0",
     [](const TrainConfig& c) { return c.head.batch_chunk_size == 0; }},
};

}  // namespace

void TrainArguments::add_options(CLI::App& train) {
  train.option_defaults()->always_capture_default();
  train.add_option("--out", out, "folder of the run")->type_name("FOLDER");
  train.add_option("--preset", preset, "options that have a name together: " + preset_names())
      ->type_name("NAME");
  train
      .add_option(
          "--config", config_file,
          "a JSON file of options, as config.json in a run's folder; the command line goes before it, and it "
          "before the preset")
      ->type_name("FILE");
  CLI::Option* from_option =
      train
          .add_option("--from", from,
                      "begin with the weights of the run, or of the checkpoint, in this place")
          ->type_name("FOLDER");
  add_data_options(train, data);
  add_model_options(train, config.model);
  for (const char* name : {"--architecture", "--n-layer", "--n-head", "--n-kv-head", "--n-embd", "--n-inner",
                           "--rope-theta", "--tied-head", "--vocab-size"})
    from_option->excludes(train.get_option(name));
  add_training_options(train, *this);
  add_optimizer_options(train, config.optimizer);
  add_schedule_options(train, config.schedule, config.peak_lr, config.min_lr, config.warmup_steps);
  add_head_options(train, config.head);
  // What describes a new run; sources are allowed, to make sure that they are the run's.
  CLI::Option* resume_option =
      train.add_option("--resume", resume, "go on with the run in this folder")->type_name("FOLDER");
  for (CLI::Option* option : train.get_options()) {
    if (option != resume_option && option != train.get_help_ptr() && option->get_name() != "--text" &&
        option->get_name() != "--data") {
      resume_option->excludes(option);
    }
  }
  train.add_option("--steps", config.steps, "how many, those before a resume included");
  device.add_to(train);
  train
      .add_option("--memory-limit", memory_limit,
                  "do not begin a run that takes more; left out: what is free")
      ->type_name("SIZE");
  train
      .add_option(
          "--sample-prompt", sample_prompts,
          "let the model go on from this text at every evaluation, for `tapehead report`; may be given again")
      ->allow_extra_args(false)
      ->type_name("TEXT");
  train.add_option("--log-every", log_every,
                   "print progress to standard error every so many steps; 0: never");
}

void TrainArguments::settle(CLI::App& train) {
  std::vector<const Condition*> given;
  for (const Condition& condition : kConditions) {
    if (train.count(condition.option) > 0) given.push_back(&condition);
  }
  if (!config_file.empty()) apply_layer(train, read_config(config_file), config_file);
  check_contradictions(train);
  if (!preset.empty()) apply_preset(train, tapehead::preset(preset), "preset " + preset);
  for (const Condition* condition : given) {
    check<ValueError>(condition->holds(config), "{} needs {}", condition->option, condition->needed);
  }

  check<ValueError>(accumulate >= 1, "[train] --accumulate is {}, but a step has at least 1 part",
                    accumulate);
  config.micro_batch_size = (config.batch_size + accumulate - 1) / accumulate;
  check<ValueError>(dtype == "f32" || dtype == "bf16",
                    "[train] --dtype {}: a model is trained in f32 or in bf16", dtype);
  config.dtype = parse_dtype(dtype);
  config.model.vocab_size = data.vocab_size;
  config.document_mask = data.document_mask;
  config.validate();
  memory_bytes();  // throws
}

std::optional<int64_t> TrainArguments::memory_bytes() const {
  return memory_limit.empty() ? std::nullopt : std::optional(parse_size(memory_limit));
}

}  // namespace tapehead
