// What the training of a head continues from, beside its tensors.
#pragma once

#include <string>

#include "tapehead/core/random.h"
#include "tapehead/models/labelled_features.h"
#include "tapehead/models/train_progress.h"

namespace tapehead {

struct HeadTrainState {
  HeadTrainConfig config = {};
  TrainProgress progress = {};
  int64_t optimizer_steps = 0;  ///< fewer than progress.step where steps were skipped
  int64_t epoch = 0;
  int64_t next_row = 0;  ///< how many rows of this epoch were taken
  Generator filter = {};
  FeaturesIdentity data = {};
};

std::string to_json(const HeadTrainState& state);

/// Throws what read_state() does (state_json.h), and ValueError on an invalid config.
HeadTrainState parse_head_state(const std::string& json);

/// That of a checkpoint. Throws ValueError that names the file and what is wrong with it.
HeadTrainState read_head_state(const std::string& path);

}  // namespace tapehead
