// Whether a run fits into memory, said before anything of it is there.
#pragma once

#include "tapehead/models/head_memory_planner.h"
#include "tapehead/models/memory_planner.h"
#include "tapehead/tools/compute_options.h"

namespace tapehead {

/// Prints the plan by class on standard output. Throws ValueError, naming the setting that would make it fit,
/// for a run that takes more than `limit`.
MemoryPlan report_memory(const TrainConfig& config, PlanConditions conditions, const MemoryLimit& limit);

/// The same of a head alone; `config` has its classes (with_classes()).
MemoryPlan report_memory(const HeadTrainConfig& config, const LabelledFeatures& data,
                         const MemoryLimit& limit);

}  // namespace tapehead
