#include "tapehead/tools/run_session.h"

#include <fmt/core.h>

#include <cstdio>
#include <filesystem>

#include "tapehead/core/file.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/metrics.h"
#include "tapehead/tools/stop_signal.h"

namespace tapehead {

using json = nlohmann::ordered_json;

RunResult train_in_folder(TrainingRun& run, const RunSession& session) {
  const RunFolder& folder = session.folder;
  StopSignal stop;
  fmt::print("{}\n", session.headline);
  std::fflush(stdout);
  MetricsLog log(folder.metrics(), run.steps_made(), run.progress().evaluated_step);
  TrainingProgress progress(session.subject, session.log_every);
  const RunResult result = run.run({.on_step =
                                        [&](const StepMetrics& metrics) {
                                          log.add(metrics);
                                          progress.step(metrics);
                                          if (session.on_step) session.on_step(metrics);
                                        },
                                    .on_evaluation =
                                        [&](const Evaluation& evaluation) {
                                          log.add(evaluation, session.held_out_bytes);
                                          if (session.on_evaluation) session.on_evaluation(evaluation.step);
                                        },
                                    .checkpoint_path = folder.checkpoint(),
                                    .stop = &stop.requested()});
  progress.clear();
  write_file_atomically(folder.loss_chart(),
                        loss_chart(read_history(folder.metrics()), session.subtitle, session.unit));
  if (!result.finished) {
    fmt::print("stopped after step {} of {}; all is saved. To go on:\n  {} --resume {}\n", result.step,
               session.subject.steps, session.program, shell_quote(folder.path));
    session.lock.release();  // which dying would not
    stop.die();
  }
  return result;
}

void write_summary(const RunFolder& folder, const json& summary) {
  write_file_atomically(folder.summary(), summary.dump(2) + "\n");
}

std::optional<json> read_summary(const RunFolder& folder, int64_t step) {
  if (!std::filesystem::exists(folder.summary())) return std::nullopt;
  json summary = json::parse(read_file(folder.summary()), nullptr, /*allow_exceptions=*/false);
  if (!summary.is_object() || summary.value("steps", int64_t{0}) != step) return std::nullopt;
  return summary;
}

}  // namespace tapehead
