#include "tapehead/tools/training_job.h"

#include <nlohmann/json.hpp>

#include "tapehead/tools/memory_trace.h"

namespace tapehead {

void TrainingJob::run() { arguments_.resume.empty() ? start() : resume(); }

void TrainingJob::start() {
  settle();
  const DeviceGuard device = arguments_.compute.use_device();
  RunSession session(command_, arguments_);
  const RunFolder& folder = session.folder();
  prepare_data(folder);
  const MemoryPlan plan = report_memory();
  TrainingRun& run = begin(folder);
  write_memory(folder.memory(), plan);
  session.write_config(options_to_leave_out());
  train(session, run, plan);
}

void TrainingJob::resume() {
  const DeviceGuard device = arguments_.compute.use_device();
  RunSession session(command_, arguments_);
  const RunFolder& folder = session.folder();
  const int64_t asked = config_.steps, made = read_checkpoint(folder);
  const int64_t steps = command_.given("--steps") ? asked : config_.steps;
  if (const auto summary = session.ended(made, steps)) {
    print_summary(*summary);
    return;
  }
  open_data(folder);
  const MemoryPlan plan = report_memory();
  TrainingRun& run = go_on(folder);
  run.set_steps(steps);
  train(session, run, plan);
}

void TrainingJob::train(RunSession& session, TrainingRun& run, const MemoryPlan& plan) {
  const RunResult result = session.train(run, describe(), plan);
  if (!result.finished) return;
  const nlohmann::ordered_json summary = finish(session.folder(), result);
  session.write_summary(summary);  // with which the run has ended: the last file
  print_summary(summary);
  print_places(session.folder());
}

}  // namespace tapehead
