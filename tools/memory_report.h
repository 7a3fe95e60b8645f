// Whether a run fits into memory, said before its first step.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tapehead/models/memory_plan.h"

namespace tapehead {

/// To be called before the model is made: throws ValueError if its parameters alone take more than `limit`,
/// or than what the default device has left.
void check_parameters_fit(const TrainConfig& config, std::optional<int64_t> limit);

/// Prints the plan by class on standard output. `recorded`: whether the device will record the step. `limit`:
/// bytes that the run may take; none: what the model's device has left (DeviceRuntime::available_memory), beside
/// the model that stands already. Throws ValueError, naming the setting that would make it fit, for a run that
/// does not.
MemoryPlan report_memory(const LanguageModel& model, const TrainConfig& config, bool recorded,
                         std::optional<int64_t> limit);

/// A step's memory, from its beginning to its end, as JSON: "moments" of the plan, and "counted" ones
/// (memory_trace.h), unless that is empty. {"moments":[{"at":"the head","parameters":1024,...},...],...}
std::string memory_over_a_step(const MemoryPlan& plan, const nlohmann::ordered_json& counted = {});

}  // namespace tapehead
