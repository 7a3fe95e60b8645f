#include "tapehead/tools/run_session.h"

#include <fmt/core.h>

#include <cstdio>
#include <filesystem>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/core/json.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/memory_trace.h"
#include "tapehead/tools/metrics.h"
#include "tapehead/tools/option_layers.h"
#include "tapehead/tools/stop_signal.h"

namespace tapehead {

namespace fs = std::filesystem;
using json = Json;

static RunFolder folder_of(const Command& command, const RunArguments& arguments) {
  if (arguments.resume.empty()) return {arguments.out};
  RunFolder folder = {arguments.resume};
  check<ValueError>(fs::exists(folder.checkpoint()), "[{}] {} holds no checkpoint to go on from",
                    command.name(), folder.path);
  return folder;
}

RunSession::RunSession(const Command& command, const RunArguments& arguments)
    : command_(command),
      folder_(folder_of(command, arguments)),
      lock_(folder_.path, command.name()),
      log_every_(arguments.log_every) {
  check<ValueError>(!arguments.resume.empty() || !fs::exists(folder_.checkpoint()),
                    "[{}] {} holds a run already; go on with --resume {}, or name another folder with --out",
                    command.name(), folder_.path, shell_quote(folder_.path));
}

std::optional<json> RunSession::ended(int64_t step, int64_t steps) const {
  if (step < steps) return std::nullopt;
  json summary = find_json_object(folder_.summary());
  if (summary.is_null() || summary.value("steps", int64_t{0}) != step) return std::nullopt;
  fmt::print("training: all {} steps are made already (skipped)\n", format_count(step));
  return summary;
}

void RunSession::write_config(std::vector<std::string> without) const {
  for (const char* place : {"config", "resume"}) without.emplace_back(place);
  write_file_atomically(folder_.config(), resolved_config(command_, without));
}

RunResult RunSession::train(TrainingRun& run, const RunDescription& description, const MemoryPlan& plan) {
  StopSignal stop;
  fmt::print("{}\n", description.headline);
  std::fflush(stdout);
  MetricsLog log(folder_.metrics(), run.steps_made(), run.progress().evaluated_step);
  TrainingProgress progress(description.subject, log_every_);
  std::function<void(const StepMetrics&)> count_memory;
  if (run.steps_made() == 0)
    count_memory = count_first_step(folder_.memory(), plan, description.parameters, description.of_head);
  const RunResult result = run.run({.on_step =
                                        [&](const StepMetrics& metrics) {
                                          log.add(metrics);
                                          progress.step(metrics);
                                          if (count_memory) count_memory(metrics);
                                        },
                                    .on_evaluation =
                                        [&](const Evaluation& evaluation) {
                                          log.add(evaluation, description.held_out_bytes);
                                          if (description.on_evaluation)
                                            description.on_evaluation(evaluation.step);
                                        },
                                    .checkpoint_path = folder_.checkpoint(),
                                    .stop = &stop.requested()});
  progress.clear();
  write_file_atomically(folder_.loss_chart(),
                        loss_chart(read_history(folder_.metrics()), description.subtitle, description.unit));
  if (!result.finished) {
    fmt::print("stopped after step {} of {}; all is saved. To go on:\n  {} --resume {}\n", result.step,
               run.config().steps, command_.invocation(), shell_quote(folder_.path));
    lock_.release();  // which dying would not
    stop.die();
  }
  return result;
}

void RunSession::write_summary(const json& summary) const {
  write_file_atomically(folder_.summary(), summary.dump(2) + "\n");
}

}  // namespace tapehead
