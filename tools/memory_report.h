// Whether a run fits into memory, said before its first step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tapehead/models/memory_plan.h"

namespace tapehead {

/// Prints the plan by class on standard output. `limit`: bytes that the run may take; none: what the model's device has left
/// (DeviceRuntime::available_memory), beside the model that stands already. Throws ValueError, naming the setting that would make it fit, for a run
/// that does not.
MemoryPlan report_memory(const LanguageModel& model, const TrainConfig& config, std::optional<int64_t> limit);

/// The plan over one step, from its beginning to its end, as JSON: {"moments":[{"at":"forward","parameters":1024,...}]}.
std::string memory_over_a_step(const MemoryPlan& plan);

}  // namespace tapehead
