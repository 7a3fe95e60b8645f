// What a run continues from, beside its tensors, and how it stands in a checkpoint: as JSON.
#pragma once

#include <string>

#include "tapehead/models/batch_gradient.h"
#include "tapehead/models/train_progress.h"

namespace tapehead {

struct TrainState {
  TrainConfig config = {};
  TrainProgress progress = {};
  int64_t optimizer_steps = 0;  ///< fewer than progress.step where steps were skipped
  DataPosition position = {};
  int64_t training_tokens = 0;  ///< size of the training file: another one is not the same run
  /// Of the tokenizer that made the tokens (Tokenizer::hash); empty where that is not known.
  std::string tokenizer_hash = {};
  StepNumbers numbers = {};
};

/// All of the state, and the version.
std::string to_json(const TrainState& state);

/// Throws what read_state() does (state_json.h), and ValueError on an invalid config.
TrainState parse_train_state(const std::string& json);

}  // namespace tapehead
