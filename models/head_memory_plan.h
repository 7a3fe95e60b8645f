// How much memory a step of train-head will take, before anything of the run is there.
#pragma once

#include "tapehead/models/labelled_features.h"
#include "tapehead/models/memory_plan.h"

namespace tapehead {

/// For `config` with its classes (with_classes()), on the default device. From shapes alone, and from whether
/// any target is to be ignored: rows that count are then picked out of their batch, for which there is room
/// even where all of them do. Exact elsewhere. `activations` are a batch of features and targets.
MemoryPlan plan_head_training(const HeadTrainConfig& config, const LabelledFeatures& data);

}  // namespace tapehead
