// The memory plan of a step of train-head.
#pragma once

#include "tapehead/models/labelled_features.h"
#include "tapehead/models/memory_plan.h"

namespace tapehead {

/// Plans for one set of features with any config, on the default device. From shapes alone, and from whether
/// any target is to be ignored: rows that count are then picked out of their batch, for which there is room
/// even where all of them do. Exact elsewhere.
class HeadMemoryPlanner {
 public:
  explicit HeadMemoryPlanner(const LabelledFeatures& data);

  /// `config` has its classes (with_classes()). `activations` are a batch of features and targets.
  MemoryPlan plan(const HeadTrainConfig& config) const;

 private:
  int64_t features_;
  DType dtype_;
  bool ignores_;
};

}  // namespace tapehead
