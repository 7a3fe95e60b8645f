// Checkpoints of language models (checkpoint_tensors.h): their parameters have Hugging Face's names.
#pragma once

#include <memory>
#include <string>

#include "tapehead/models/train_state.h"

namespace tapehead {

/// Writes parameters, the optimiser's state (null: none, a model to begin from) and the
/// run's. Throws ValueError if `path` does not end in .safetensors, SystemError if the
/// machine refuses; then the old checkpoint, if any, is untouched.
void save_checkpoint(const std::string& path, const TrainState& state, const LanguageModel& model,
                     const Optimizer* optimizer);

/// The state alone. Throws ValueError that names the file and what is wrong with it:
/// missing, cut short, damaged, of a newer version, not a checkpoint of this program.
TrainState read_train_state(const std::string& path);

/// Copies parameters and, if `optimizer` is given, its state and steps out of the file.
/// Throws ValueError that names file and tensor if one is missing, of another shape (both are stated) or
/// dtype, damaged, or not finite, and if `optimizer` is given for a model to begin from;
/// then nothing was changed.
void load_tensors(const std::string& path, const LanguageModel& model, Optimizer* optimizer = nullptr);

/// The weights that a file has for the model's parameters, as exact as it has them (master weights,
/// where it does) and in the dtype of that. Throws what load_tensors does, but takes any dtype.
ParameterList read_weights(const std::string& path, const LanguageModel& model);

/// A checkpoint to evaluate or to generate from: its model, in the dtype that it was trained in.
struct LoadedModel {
  TrainState state;
  std::unique_ptr<LanguageModel> model;
};
LoadedModel load_model(const std::string& path, Device device = default_device());

}  // namespace tapehead
