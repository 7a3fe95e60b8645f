#include "tapehead/models/training_run.h"

#include <cmath>

#include "tapehead/core/op_timer.h"
#include "tapehead/core/stopwatch.h"
#include "tapehead/models/checkpoint_files.h"

namespace tapehead {

void TrainingRun::set_steps(int64_t steps) {
  check<ValueError>(steps >= steps_made(), "[run] {} steps were made already, more than {}", steps_made(),
                    steps);
  own_config().steps = steps;
}

// ---- A step

StepMetrics TrainingRun::step() {
  const Stopwatch stopwatch;
  StepMetrics metrics{.step = steps_made() + 1};
  metrics.lr = config().learning_rates().at(metrics.step);
  try {
    finish_step(metrics, compute_gradient(metrics));
  } catch (...) {
    optimizer_->zero_grad();
    throw;
  }
  metrics.seconds = stopwatch.seconds();
  return metrics;
}

// Updates the parameters, unless the guard skips that, and takes note of the step.
void TrainingRun::finish_step(StepMetrics& metrics, const StepGradient& gradient) {
  const auto [loss, norm] = gradient.numbers;
  if (!std::isfinite(loss) || !std::isfinite(norm)) {
    optimizer_->zero_grad();
    fail<RuntimeError>(
        "[{}] step {} diverged: its loss is {} and its gradient's norm {}; nothing was changed. {}",
        command(), metrics.step, loss, norm, gradient.explain_divergence());
  }
  const RunConfig& c = config();
  metrics.loss = loss;
  metrics.grad_norm = norm;
  metrics.skipped = progress_.guard.skips(loss, norm, c.skip_z_score);
  const double scale = clip_scale(norm, c.clip_norm);
  if (!metrics.skipped)
    gradient.update ? gradient.update(metrics.lr, scale) : optimizer_->step(metrics.lr, scale);
  optimizer_->zero_grad();
  OpTimer::charge("optimizer");
  progress_.step = metrics.step;
  progress_.loss.add(loss);
  metrics.smoothed_loss = progress_.loss.mean();
}

// ---- Between steps

// Whether the loss is the lowest so far.
bool TrainingRun::measure(const RunCallbacks& callbacks, RunResult& result) {
  result.evaluation = evaluate_held_out();
  result.evaluation->step = progress_.evaluated_step = steps_made();
  const double loss = result.evaluation->loss;
  const bool best = std::isfinite(loss) && (progress_.best_step == 0 || loss < progress_.best_loss);
  if (best) {
    progress_.best_step = steps_made();
    progress_.best_loss = loss;
  }
  if (callbacks.on_evaluation) callbacks.on_evaluation(*result.evaluation);
  return best;
}

void TrainingRun::save_and_keep(const RunCallbacks& callbacks) const {
  if (callbacks.checkpoint_path.empty()) return;
  save(callbacks.checkpoint_path);
  keep(callbacks.checkpoint_path);
}

// Gives the latest checkpoint, which is of this step, the other names that it should have.
void TrainingRun::keep(const std::string& latest) const {
  const RunConfig& c = config();
  keep_numbered(latest, steps_made(), c.keep);
  if (c.keep_best && progress_.best_step > 0 && progress_.best_step == steps_made()) keep_as_best(latest);
}

RunResult TrainingRun::run(const RunCallbacks& callbacks) {
  const RunConfig& c = config();
  RunResult result;
  const auto finished = [&] { return steps_made() >= c.steps; };
  const auto stopped = [&] { return callbacks.stop && callbacks.stop->load(); };
  const auto is_due = [&](int64_t interval) { return interval > 0 && steps_made() % interval == 0; };
  const auto evaluate_if_due = [&] {
    return has_held_out() && is_due(c.eval_interval) && progress_.evaluated_step < steps_made() &&
           measure(callbacks, result);
  };

  // What the process that was here before may not have come to.
  if (!resumed_from_.empty() && resumed_from_ == callbacks.checkpoint_path) keep(resumed_from_);
  if (!finished() && evaluate_if_due() && c.keep_best) save_and_keep(callbacks);

  while (!finished() && !stopped()) {
    const StepMetrics metrics = step();
    if (callbacks.on_step) callbacks.on_step(metrics);
    if (finished() || stopped()) break;
    const bool best = evaluate_if_due();
    if (is_due(c.save_interval) || (best && c.keep_best)) save_and_keep(callbacks);
  }
  save_and_keep(callbacks);
  if (finished() && has_held_out()) {
    measure(callbacks, result);
    save_and_keep(callbacks);  // of the evaluation, too
  }
  result.finished = finished();
  result.step = steps_made();
  return result;
}

}  // namespace tapehead
