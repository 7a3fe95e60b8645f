// Everything that the training of a language model depends on besides its tokens.
#pragma once

#include <string>

#include "tapehead/models/language_model.h"
#include "tapehead/models/run_config.h"

namespace tapehead {

/// A step's batch is of windows of model.n_positions tokens.
struct TrainConfig : RunConfig {
  ModelConfig model = {};
  /// Of weights, activations and gradients: f32 or bf16. The loss, statistics of softmax
  /// and norms, and what the optimiser keeps are f32 in either case.
  DType dtype = DType::f32;
  int64_t micro_batch_size = 0;  ///< windows computed at once, less memory for the same step; 0: batch_size
  std::string freeze = {};       ///< patterns of parameters that are not trained (freeze.h)
  /// Backward runs each block again, instead of keeping what it computed.
  bool recompute_activations = false;
  bool document_mask = false;  ///< attention stays within a document
  /// Folder of the tokenizer that made the tokens, kept for whoever reads a checkpoint.
  std::string tokenizer = {};

  bool operator==(const TrainConfig&) const = default;

  /// Throws ValueError that names the field, its value and the rule.
  void validate() const;
  int64_t micro_batch() const { return micro_batch_size > 0 ? micro_batch_size : batch_size; }
};

}  // namespace tapehead
