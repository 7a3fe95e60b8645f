// A vocabulary head, or any linear classifier with very many classes, trained on features
// that were computed elsewhere.
//
// Shape letters: N rows, F features, C classes.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tapehead/models/head_state.h"
#include "tapehead/models/labelled_features.h"
#include "tapehead/models/training_run.h"

namespace tapehead {

/// Trains a weight (C, F), which begins at zero, and a bias (C), on the device that is
/// the default one when it is made. Weights have the features' dtype; those of 16 bits
/// have f32 masters. An epoch visits each row once, in an order that depends on
/// (seed, epoch) alone. Memory: 16 bytes a row, 24 where targets are not i64, the head's, and a batch of
/// features.
class HeadTrainer final : public TrainingRun {
 public:
  /// Throws what with_classes() does, and ValueError where rows are too few for a batch or none held out
  /// counts.
  HeadTrainer(HeadTrainConfig config, LabelledFeatures data);

  /// Continues the run that wrote the checkpoint at `path`, bit for bit as if it had
  /// never stopped, given the same features. Throws ValueError that names the file for
  /// other features and for what is wrong with it (checkpoint_tensors.h).
  static HeadTrainer resume(const std::string& path, LabelledFeatures data);

  void save(const std::string& path) const override;

  /// On the rows held out. Throws ValueError if there are none.
  Evaluation evaluate() const;

  /// With the classes that were counted.
  const HeadTrainConfig& config() const override { return config_; }
  /// weight, and bias if there is one.
  const ParameterList& parameters() const { return parameters_; }

 private:
  struct Rows {
    Tensor features, targets;
    int64_t counted;  // whose target is none to be ignored
  };
  Rows gather(std::span<const int64_t> rows) const;
  Rows next_batch();
  void order_epoch();
  Tensor loss(const Rows& batch, LinearCrossEntropyArgs args) const;

  StepGradient compute_gradient(StepMetrics& metrics) override;
  bool has_held_out() const override { return !held_out_.empty(); }
  Evaluation evaluate_held_out() const override { return evaluate(); }
  const char* command() const override { return "train-head"; }
  HeadTrainConfig& own_config() override { return config_; }

  HeadTrainConfig config_;
  LabelledFeatures data_;
  FeaturesIdentity identity_;
  ParameterList parameters_;
  std::vector<int64_t> training_, held_out_;  // rows, by number
  std::vector<int64_t> order_;                // of the training rows in this epoch
  int64_t epoch_ = 0, next_ = 0;              // of order_
  Generator filter_;
};

}  // namespace tapehead
