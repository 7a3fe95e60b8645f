// A vocabulary head, or any linear classifier with very many classes, trained on features that were computed elsewhere.
//
// Shape letters: N rows, F features, C classes.
#pragma once

#include <functional>

#include "tapehead/models/train_config.h"

namespace tapehead {

/// Rows and the class of each.
struct LabelledFeatures {
  /// (N, F) floating, contiguous, on the host; may be mapped from a file: batches copy the rows that they take.
  Tensor features;
  Tensor targets;  ///< (N) i64, on the host; -100: a row that does not count

  /// "features" and "targets" of a safetensors file, mapped. Throws ValueError that names the file and what is wrong: one of
  /// them missing, another shape or dtype, or rows and targets that differ in number.
  static LabelledFeatures open(const std::string& path);
};

struct HeadTrainConfig {
  int64_t classes = 0;  ///< 0: the largest target and one
  bool bias = false;
  int64_t steps = 1000;
  int64_t batch_size = 4096;  ///< rows in a step
  std::string schedule = "cosine";
  double peak_lr = 1e-2, min_lr = 0;
  int64_t warmup_steps = 0;
  OptimizerOptions optimizer = {.weight_decay = 0};
  HeadConfig head = {};
  double held_out = 0.05;  ///< fraction of the rows, chosen by seed, that are only measured on
  uint64_t seed = 0;

  void validate() const;
};

/// How a head does on rows that it was not trained on.
struct HeadEvaluation {
  double loss = 0;  ///< nats a row
  int64_t rows = 0, correct_rows = 0;
};

/// Trains a weight (C, F), which begins at zero, and a bias (C), on the device that is the default one when it is made. Weights
/// have the features' dtype; those of 16 bits have f32 masters. An epoch visits each row once, in an order that depends on
/// (seed, epoch) alone. Memory: 8 bytes a row, the head's, and a batch of features.
class HeadTrainer {
 public:
  /// Throws ValueError on a config that cannot be, and on a target outside the classes, naming its row.
  HeadTrainer(HeadTrainConfig config, LabelledFeatures data);

  /// One step; the batch's loss. Throws RuntimeError if it is no finite number; then nothing was changed.
  double step();
  int64_t steps_made() const { return optimizer_->steps(); }
  const HeadTrainConfig& config() const { return config_; }

  /// On the rows held out. Throws ValueError if there are none.
  HeadEvaluation evaluate() const;

  /// weight, and bias if there is one.
  const ParameterList& parameters() const { return parameters_; }

 private:
  struct Rows {
    Tensor features, targets;
  };
  Rows gather(std::span<const int64_t> rows) const;
  void shuffle();

  HeadTrainConfig config_;
  LabelledFeatures data_;
  ParameterList parameters_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<int64_t> training_, held_out_;  // rows
  int64_t epoch_ = 0;
  size_t next_ = 0;  // of training_
  Generator filter_;
};

}  // namespace tapehead
