#include "tapehead/tools/memory_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "tapehead/tools/format.h"

namespace tapehead {

// What to change for the run to fit, with what it would take then.
static std::string remedy(const MemoryPlanner& planner, const LanguageModel& model, const TrainConfig& config,
                          bool recorded, int64_t limit) {
  if (recorded) {
    const int64_t peak = MemoryPlanner(model, config).plan().peak;
    if (peak <= limit) return fmt::format("a step without --capture takes {}", format_bytes(peak));
  }
  for (int64_t parts = 2; parts < 2 * config.batch_size; parts *= 2) {
    const int64_t rows = (config.batch_size + parts - 1) / parts;
    const int64_t peak = planner.plan(rows).peak;
    if (rows < config.micro_batch() && peak <= limit)
      return fmt::format("--accumulate {} takes {}", std::min(parts, config.batch_size), format_bytes(peak));
  }
  TrainConfig small = config;
  small.recompute_activations = true;
  std::string options = fmt::format("--accumulate {} --recompute-activations", config.batch_size);
  for (const int64_t chunk : {config.head.batch_chunk_size, int64_t{64}}) {
    small.head.batch_chunk_size = chunk;
    const int64_t peak = MemoryPlanner(model, small, recorded).plan(1).peak;
    if (peak <= limit) return fmt::format("{} takes {}", options, format_bytes(peak));
    options += " --head-batch-chunk-size 64";
  }
  return fmt::format(
      "even one context at a time takes {}: choose a smaller model or --context, or --dtype bf16",
      format_bytes(planner.plan(1).peak));
}

void check_parameters_fit(const TrainConfig& config, std::optional<int64_t> limit) {
  if (!limit) limit = device_runtime(default_device()).available_memory();
  const int64_t bytes = parameter_bytes(config.model, config.dtype);
  check<ValueError>(
      !limit || bytes <= *limit,
      "[train] the parameters alone take {} of memory, and there are {}: choose a smaller model, or "
      "--dtype bf16",
      format_bytes(bytes), format_bytes(limit.value_or(0)));
}

MemoryPlan report_memory(const LanguageModel& model, const TrainConfig& config, bool recorded,
                         std::optional<int64_t> limit) {
  const MemoryPlanner planner(model, config, recorded);
  const MemoryPlan plan = planner.plan();
  if (!limit) {
    limit = device_runtime(model.device()).available_memory();
    if (limit) *limit += plan.parameters;  // which are there
  }
  fmt::print(
      "memory: {} for parameters, {} gradients, {} optimizer, {} activations, {} head; {} at once{}{}\n",
      format_bytes(plan.parameters), format_bytes(plan.gradients), format_bytes(plan.optimizer),
      format_bytes(plan.activations), format_bytes(plan.head), format_bytes(plan.peak),
      limit ? fmt::format(" of {}", format_bytes(*limit)) : "",
      recorded ? fmt::format(", {} of it the recorded step's", format_bytes(plan.recording)) : "");
  std::fflush(stdout);
  if (!limit || plan.peak <= *limit) return plan;
  fail<ValueError>("[train] a step takes {} of memory, and there are {}: {}", format_bytes(plan.peak),
                   format_bytes(*limit), remedy(planner, model, config, recorded, *limit));
}

std::string memory_over_a_step(const MemoryPlan& plan, const nlohmann::ordered_json& counted) {
  using json = nlohmann::ordered_json;
  const auto moment = [&](const char* at, int64_t activations, int64_t head, int64_t gradients) -> json {
    return {{"at", at},
            {"parameters", plan.parameters},
            {"optimizer", plan.optimizer},
            {"gradients", gradients},
            {"activations", activations},
            {"head", head}};
  };
  const int64_t activations = plan.activations, gradients = plan.gradients;
  json memory = {{"moments",
                  {moment("the beginning", 0, 0, 0), moment("the end of forward", activations, 0, 0),
                   moment("the head", activations, plan.head, 0),
                   moment("half of backward", activations / 2, 0, gradients / 2),
                   moment("the end of backward", 0, 0, gradients), moment("the end", 0, 0, 0)}}};
  if (!counted.empty()) memory["counted"] = counted;
  return memory.dump() + "\n";
}

}  // namespace tapehead
