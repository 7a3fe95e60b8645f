// What every run has in common: steps, held-out evaluations and checkpoints between them,
// stopping and resuming between steps.
//
// What a step's gradient is of, says the class derived from TrainingRun: Trainer (trainer.h),
// HeadTrainer (head_trainer.h).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tapehead/models/evaluation.h"
#include "tapehead/models/optimizer.h"
#include "tapehead/models/train_progress.h"

namespace tapehead {

struct StepMetrics {
  int64_t step = 0;          ///< counts from 1
  double loss = 0;           ///< nats per target, before this step's update
  double smoothed_loss = 0;  ///< mean of the steps so far, the last 50 weighing most (RunningStatistics)
  double lr = 0;
  double grad_norm = 0;             ///< before clipping
  int64_t tokens = 0;               ///< targets of this step
  double seconds = 0;               ///< wall time of this step
  int64_t epoch = 0;                ///< that the step's first window, or row, is of
  bool skipped = false;             ///< the update was not made (RunConfig::skip_z_score)
  GradientFilterStats filter = {};  ///< of the head's gradient filter; all 0 without one
};

struct RunCallbacks {
  std::function<void(const StepMetrics&)> on_step = {};
  std::function<void(const Evaluation&)> on_evaluation = {};
  /// Where checkpoints go; empty: none are written.
  std::string checkpoint_path = {};
  /// Once true, the step is finished, a checkpoint saved, and run() returns. May be set by a signal handler.
  const std::atomic<bool>* stop = nullptr;
};

struct RunResult {
  bool finished = false;                      ///< false: stopped before the last step
  int64_t step = 0;                           ///< steps made, those before a resume included
  std::optional<Evaluation> evaluation = {};  ///< a finished run's last one, if something is held out
};

class TrainingRun {
 public:
  virtual ~TrainingRun() = default;

  /// Runs the steps that are left, evaluates and saves as its config says. An evaluation
  /// that was due where an earlier run stopped is made up for. An exception, a callback's
  /// included, ends the run between two steps; the latest checkpoint stays.
  RunResult run(const RunCallbacks& callbacks = {});

  /// One step. Throws RuntimeError where the loss or the gradient is no finite number, with what the
  /// derived class knows of the cause. Whatever is thrown, parameters, optimiser and step count are as before
  /// and no gradient is left; data and random numbers have moved on.
  StepMetrics step();

  /// Writes a checkpoint (checkpoint_tensors.h).
  virtual void save(const std::string& path) const = 0;

  /// Changes how far the run goes, for example after a resume. Throws ValueError below
  /// the steps already made.
  void set_steps(int64_t steps);
  virtual const RunConfig& config() const = 0;
  int64_t steps_made() const { return progress_.step; }
  const TrainProgress& progress() const { return progress_; }

 protected:
  TrainingRun() = default;
  TrainingRun(TrainingRun&&) = default;

  /// Of a step, before the update.
  struct StepGradient {
    LossAndNorm numbers;
    /// What to say, once the gradients are cleared, where these are not finite: a cause, what to change.
    std::function<std::string()> explain_divergence;
    /// Does what Optimizer::step() does, where gradients are not with the parameters; empty: they are.
    std::function<void(double learning_rate, double gradient_scale)> update = {};
  };
  /// Takes the next batch and computes its gradient. Of `metrics` it fills in epoch, tokens and filter.
  virtual StepGradient compute_gradient(StepMetrics& metrics) = 0;

  virtual bool has_held_out() const = 0;
  virtual Evaluation evaluate_held_out() const = 0;

  /// "train" of `tapehead train`.
  virtual const char* command() const = 0;
  /// config(), to change how far the run goes.
  virtual RunConfig& own_config() = 0;

  std::unique_ptr<Optimizer> optimizer_;
  TrainProgress progress_;
  std::string resumed_from_;  // path of the checkpoint; empty: it was begun here

 private:
  void finish_step(StepMetrics& metrics, const StepGradient& gradient);
  bool measure(const RunCallbacks& callbacks, RunResult& result);
  void save_and_keep(const RunCallbacks& callbacks) const;
  void keep(const std::string& latest) const;
};

}  // namespace tapehead
