// What a run continues from, beside its tensors, and how it stands in a checkpoint: as JSON.
#pragma once

#include <string>

#include "tapehead/models/batch_gradient.h"
#include "tapehead/models/step_guard.h"

namespace tapehead {

/// What a run has behind it.
struct TrainProgress {
  int64_t step = 0;            ///< made or skipped
  RunningStatistics loss;      ///< whose mean is the smoothed loss
  StepGuard guard;             ///< the statistics behind skip_z_score
  int64_t evaluated_step = 0;  ///< of the last evaluation
  int64_t best_step = 0;       ///< of the lowest held-out loss; 0: there was no evaluation yet
  double best_loss = 0;

  bool operator==(const TrainProgress&) const = default;
};

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

/// The format's version. A reader takes its own and older ones.
constexpr int64_t kTrainStateVersion = 2;

/// All of the state, and the version.
std::string to_json(const TrainState& state);

/// Throws ValueError, without a name of what it read: on a version that is newer, a field that is missing or of another type,
/// an invalid config.
TrainState parse_train_state(const std::string& json);

}  // namespace tapehead
