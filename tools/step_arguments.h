// A model on random tokens, for commands that measure one: how large it is, and a training step.
#pragma once

#include <optional>
#include <string>

#include "tapehead/models/token_file.h"
#include "tapehead/models/train_config.h"
#include "tapehead/tools/command_line.h"

namespace tapehead {

struct StepArguments {
  std::string preset = "quickstart";
  // Instead of the preset's.
  std::optional<std::string> architecture;
  std::optional<int64_t> n_layer, n_head, n_embd, context, vocab_size, batch_size;
  std::string dtype = "f32";

  /// Adds all of them to `command`.
  void add_options(Command command);
  /// Those of the model alone.
  void add_model_options(Command command);

  /// What they ask for. Throws ValueError for a preset that there is none of, and what
  /// TrainConfig::validate() does.
  TrainConfig config() const;
};

/// Random tokens, enough for `steps` batches, of the vocabulary of config.model.
TokenFile random_tokens(const TrainConfig& config, int64_t steps);

}  // namespace tapehead
