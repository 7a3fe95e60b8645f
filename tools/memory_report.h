// Whether a run fits into memory, said before its first step.
#pragma once

#include <cstdint>
#include <optional>

#include "tapehead/models/memory_plan.h"

namespace tapehead {

/// Bytes that the machine can give to new processes' memory: /proc/meminfo's MemAvailable, or what a control group leaves of
/// its limit, whichever is less. None where the system does not say.
std::optional<int64_t> available_memory();

/// Prints the plan by class on standard output. `limit`: bytes that the run may take; none: available_memory(), beside the
/// model that stands already. Throws ValueError, naming the setting that would make it fit, for a run
/// that does not.
void report_memory(const LanguageModel& model, const TrainConfig& config, std::optional<int64_t> limit);

}  // namespace tapehead
