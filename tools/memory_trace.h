// memory.json of a run: the memory of one step, by what it is for, as planned and as counted.
//
//   {"moments":[{"at":"the head","parameters":1024,...},...],"counted":[{"at":"embedding",...},...]}
//
// "moments" are of the plan. "counted" is what was there after every operation of the first step, neighbours
// that are alike being one; of a step in very many parts, the first ones.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tapehead/models/memory_plan.h"
#include "tapehead/models/module.h"
#include "tapehead/models/training_run.h"

namespace tapehead {

/// Writes the plan alone, to `path`.
void write_memory(const std::string& path, const MemoryPlan& plan);

/// What is to be called after each step of a run that begins now, on this thread: after the first one, it
/// writes the plan and what was counted since. `parameters`: all of the run's, on one device; `of_head`:
/// those whose gradients are counted in the scope "head". Changes nothing of the step, and costs a lookup for
/// each operation.
std::function<void(const StepMetrics&)> count_first_step(std::string path, const MemoryPlan& plan,
                                                         ParameterList parameters,
                                                         std::vector<Tensor> of_head);

}  // namespace tapehead
