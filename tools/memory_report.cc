#include "tapehead/tools/memory_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>

#include "tapehead/tools/format.h"

namespace tapehead {

static constexpr int64_t kFewRows = 64;  // of a chunk, the fewest that are advised

// What to change for the run to fit, with what it would take then.
static std::string remedy(const MemoryPlanner& planner, const TrainConfig& config, PlanConditions conditions,
                          int64_t limit) {
  if (conditions.recorded) {
    const int64_t peak = MemoryPlanner(config, {.loaded = conditions.loaded}).plan().peak;
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
  for (const int64_t chunk : {config.head.batch_chunk_size, kFewRows}) {
    small.head.batch_chunk_size = chunk;
    const int64_t peak = MemoryPlanner(small, conditions).plan(1).peak;
    if (peak <= limit) return fmt::format("{} takes {}", options, format_bytes(peak));
    options += fmt::format(" --head-batch-chunk-size {}", kFewRows);
  }
  return fmt::format("even one context at a time takes {}: choose a smaller model or --context{}",
                     format_bytes(planner.plan(1).peak), is_half(config.dtype) ? "" : ", or --dtype bf16");
}

static std::string remedy(const HeadMemoryPlanner& planner, HeadTrainConfig small, int64_t limit) {
  std::string options;
  const auto peak = [&] { return planner.plan(small).peak; };
  if (const int64_t chunk = small.head.batch_chunk_size; chunk == 0 || chunk > kFewRows) {
    small.head.batch_chunk_size = kFewRows;
    options = fmt::format("--head-batch-chunk-size {} ", kFewRows);
    if (peak() <= limit) return fmt::format("{}takes {}", options, format_bytes(peak()));
  }
  while (small.batch_size > 1) {
    small.batch_size = (small.batch_size + 1) / 2;
    if (peak() <= limit)
      return fmt::format("{}--batch-size {} takes {}", options, small.batch_size, format_bytes(peak()));
  }
  return fmt::format(
      "even one row at a time takes {}: choose features of 16 bits, fewer classes, or --optimizer sgd, which "
      "keeps less",
      format_bytes(peak()));
}

static void report(const char* command, const MemoryPlan& plan, const MemoryLimit& memory_limit,
                   const std::function<std::string(int64_t limit)>& advice) {
  const std::optional<int64_t> limit = memory_limit.bytes();
  fmt::print(
      "memory: {} for parameters, {} gradients, {} optimizer, {} activations, {} head; {} at once{}{}\n",
      format_bytes(plan.parameters), format_bytes(plan.gradients), format_bytes(plan.optimizer),
      format_bytes(plan.activations), format_bytes(plan.head), format_bytes(plan.peak),
      limit ? fmt::format(" of {}", format_bytes(*limit)) : "",
      plan.recording > 0 ? fmt::format(", {} of it the recorded step's", format_bytes(plan.recording)) : "");
  std::fflush(stdout);
  if (!limit || plan.peak <= *limit) return;
  fail<ValueError>("[{}] a step takes {} of memory, and there are {}: {}", command, format_bytes(plan.peak),
                   format_bytes(*limit), advice(*limit));
}

MemoryPlan report_memory(const TrainConfig& config, PlanConditions conditions, const MemoryLimit& limit) {
  const MemoryPlanner planner(config, conditions);
  const MemoryPlan plan = planner.plan();
  report("train", plan, limit, [&](int64_t bytes) { return remedy(planner, config, conditions, bytes); });
  return plan;
}

MemoryPlan report_memory(const HeadTrainConfig& config, const LabelledFeatures& data,
                         const MemoryLimit& limit) {
  const HeadMemoryPlanner planner(data);
  const MemoryPlan plan = planner.plan(config);
  report("train-head", plan, limit, [&](int64_t bytes) { return remedy(planner, config, bytes); });
  return plan;
}

}  // namespace tapehead
