// A run on disk: one safetensors file that holds everything, so that no two files have to belong together.
//
//   NAME.safetensors   parameters under Hugging Face's names, the moments as optimizer.first.NAME and
//                      optimizer.second.NAME, of 16-bit parameters the master weights as
//                      optimizer.master.NAME, and under the metadata key "tapehead" the rest as JSON
//   NAME.json          a copy of that JSON to look at; never read back
//
// Both are written to temporary files, synced and renamed: after a crash the old checkpoint or the new one is
// there.
#pragma once

#include <string>

#include "tapehead/models/trainer.h"

namespace tapehead {

/// What a run continues from, beside its tensors.
struct TrainState {
  TrainConfig config = {};
  int64_t step = 0;
  DataPosition position = {};
  int64_t training_tokens = 0;  ///< size of the training file: another one is not the same run
  Generator dropout = {};
  Generator filter = {};  ///< of the head's gradient filter
};

/// Writes parameters, moments and master weights (of a null optimizer none: a model to begin from) and state.
/// Throws ValueError if `path` does not end in .safetensors, SystemError if the machine refuses; then the old
/// checkpoint, if any, is untouched.
void save_checkpoint(const std::string& path, const TrainState& state, const LanguageModel& model,
                     const AdamWOptimizer* optimizer);

/// The state alone. Throws ValueError that names the file and what is wrong with it: missing, cut short, not
/// a checkpoint of this program.
TrainState read_train_state(const std::string& path);

/// Copies parameters and, if `optimizer` is given, moments, master weights and its step out of the file.
/// Throws ValueError that names file and tensor if one is missing, of another shape (both are stated) or
/// dtype, or not finite, and if `optimizer` is given for a model to begin from; then nothing was changed.
void load_tensors(const std::string& path, const LanguageModel& model, AdamWOptimizer* optimizer = nullptr);

/// A checkpoint to evaluate or to generate from: its model, in the dtype that it was trained in.
struct LoadedModel {
  TrainState state;
  std::unique_ptr<LanguageModel> model;
};
LoadedModel load_model(const std::string& path, Device device = default_device());

}  // namespace tapehead
