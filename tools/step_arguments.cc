#include "tapehead/tools/step_arguments.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "tapehead/core/random.h"
#include "tapehead/tools/presets.h"

namespace tapehead {

void StepArguments::add_options(Command command) {
  add_model_options(command);
  command.add_option("--batch-size", batch_size, "contexts in a step");
}

void StepArguments::add_model_options(Command command) {
  command
      .add_option(
          "--preset", preset,
          "model and context of this preset of `train`, and of its batch what a step computes at once: " +
              preset_names() + ". What follows replaces a number of it")
      .show_default();
  command.add_option("--architecture", architecture, "gpt2 or llama");
  command.add_option("--n-layer", n_layer, "transformer blocks");
  command.add_option("--n-head", n_head, "attention heads in a block");
  command.add_option("--n-embd", n_embd, "width");
  command.add_option("--context", context, "tokens that the model sees at once");
  command.add_option("--vocab-size", vocab_size, "words in the head");
  command.add_option("--dtype", dtype, "f32 or bf16").show_default();
}

TrainConfig StepArguments::config() const {
  TrainConfig config;
  ModelConfig& model = config.model;
  const nlohmann::ordered_json options = tapehead::preset(preset);
  const auto set = [&](auto& field, const char* key) { field = options.value(key, field); };
  set(model.architecture, "architecture");
  set(model.n_layer, "n-layer");
  set(model.n_head, "n-head");
  set(model.n_kv_head, "n-kv-head");
  set(model.n_embd, "n-embd");
  set(model.n_inner, "n-inner");
  set(model.n_positions, "context");
  set(model.vocab_size, "vocab-size");
  set(config.batch_size, "batch-size");
  config.batch_size /= options.value("accumulate", int64_t{1});

  model.architecture = architecture.value_or(model.architecture);
  model.n_layer = n_layer.value_or(model.n_layer);
  model.n_head = n_head.value_or(model.n_head);
  model.n_embd = n_embd.value_or(model.n_embd);
  model.n_positions = context.value_or(model.n_positions);
  model.vocab_size = vocab_size.value_or(model.vocab_size);
  config.batch_size = batch_size.value_or(config.batch_size);
  config.dtype = parse_dtype(dtype);
  config.validate();
  return config;
}

TokenFile random_tokens(const TrainConfig& config, int64_t steps) {
  Generator random{.seed = 1};
  std::vector<int32_t> tokens(static_cast<size_t>(config.batch_size * config.model.n_positions * steps + 1));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random.below(static_cast<uint64_t>(config.model.vocab_size)));
  }
  return TokenFile::temporary(tokens, config.model.vocab_size);
}

}  // namespace tapehead
