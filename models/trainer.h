// Training from tokens: steps, held-out evaluation, checkpoints, stopping and resuming between steps.
//
//   Trainer trainer(config, TokenFile::open("train.tokens"), TokenFile::open("held_out.tokens"));
//   trainer.run({.on_step = [](const StepMetrics& m) { fmt::print("{} {}\n", m.step, m.loss); }});
//   trainer.save("run/checkpoint.safetensors");
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tapehead/models/evaluation.h"
#include "tapehead/models/train_state.h"

namespace tapehead {

struct StepMetrics {
  int64_t step = 0;          ///< counts from 1
  double loss = 0;           ///< nats per target token, before this step's update
  double smoothed_loss = 0;  ///< mean of the steps so far, the last 50 weighing most (RunningStatistics)
  double lr = 0;
  double grad_norm = 0;             ///< before clipping
  int64_t tokens = 0;               ///< target tokens of this step
  double seconds = 0;               ///< wall time of this step
  int64_t epoch = 0;                ///< that the step's first window is of
  bool skipped = false;             ///< the update was not made (TrainConfig::skip_z_score)
  GradientFilterStats filter = {};  ///< of the head's gradient filter; all 0 without one
};

/// What a run begins with.
struct TrainStart {
  /// Checkpoint whose weights the model takes over; empty: random ones, by seed.
  std::string from = {};
  /// Called once the model stands, before anything else is allocated: the place to see whether the run fits.
  std::function<void(const LanguageModel&)> on_model = {};
};

struct RunCallbacks {
  std::function<void(const StepMetrics&)> on_step = {};
  std::function<void(const Evaluation&)> on_evaluation = {};
  std::function<void(const std::string& path)> on_save = {};
  /// Where checkpoints go; empty: none are written.
  std::string checkpoint_path = {};
  /// Once true, the step is finished, a checkpoint saved, and run() returns. May be set by a signal handler.
  const std::atomic<bool>* stop = nullptr;
};

struct RunResult {
  bool finished = false;                      ///< false: stopped before the last step
  int64_t step = 0;                           ///< steps made, those before a resume included
  std::optional<Evaluation> evaluation = {};  ///< a finished run's last one, if there are held-out tokens
  HeadMemory head = {};
};

/// The model, and all that goes with it, is on the device that is the default one when the trainer is made.
class Trainer {
 public:
  /// Throws ValueError if the config is invalid, the tokens' vocabulary is larger than the model's or of another tokenizer
  /// than start.from's, or there are too few tokens for a batch; what freeze() and read_weights() throw. The master weights of a bf16 model begin as the f32
  /// model of the same seed or start.from's weights, the model as their rounding.
  Trainer(TrainConfig config, Dataset training, std::optional<Dataset> held_out = std::nullopt,
          const TrainStart& start = {});

  /// Continues the run that wrote the checkpoint at `path`, bit for bit as if it had never stopped, given the
  /// same tokens. `on_model`: TrainStart's. Errors of read_train_state and load_tensors, and those above.
  static Trainer resume(const std::string& path, Dataset training,
                        std::optional<Dataset> held_out = std::nullopt,
                        std::function<void(const LanguageModel&)> on_model = {});

  /// Runs the steps that are left, evaluates and saves as the config says. An evaluation that was due where an earlier run
  /// stopped is made up for. An exception, a callback's included, ends the run between two steps; the latest
  /// checkpoint stays.
  RunResult run(const RunCallbacks& callbacks = {});

  /// One step. Throws RuntimeError where the loss or the gradient is no finite number, naming the first operation that made one
  /// (AnomalyGuard, on the step computed again). Whatever is thrown, parameters, optimiser and step count are as
  /// before and no gradient is left; data and random numbers have moved on.
  StepMetrics step();

  /// Writes a checkpoint (checkpoint.h).
  void save(const std::string& path) const;

  const TrainConfig& config() const { return config_; }
  /// Changes how far the run goes, for example after a resume. Throws ValueError below the steps already made.
  void set_steps(int64_t steps);
  const LanguageModel& model() const { return *model_; }
  int64_t steps_made() const { return progress_.step; }
  const TrainProgress& progress() const { return progress_; }
  HeadMemory head_memory() const { return head_; }

 private:
  /// Updates the parameters from their gradients, unless the guard skips that.
  void update(StepMetrics& metrics);
  [[noreturn]] void explain_divergence(const StepMetrics& metrics, const Batch& batch, StepNumbers numbers);
  bool evaluate_held_out(const RunCallbacks& callbacks, RunResult& result);
  void save_and_keep(const RunCallbacks& callbacks) const;
  /// Gives the latest checkpoint, which is of this step, the other names that it should have.
  void keep(const std::string& latest) const;

  TrainConfig config_;
  std::unique_ptr<Dataset> training_;
  std::optional<Dataset> held_out_;
  std::unique_ptr<LanguageModel> model_;
  std::unique_ptr<Optimizer> optimizer_;
  Batches batches_;
  StepNumbers numbers_;
  TrainProgress progress_;
  HeadMemory head_;
  std::string resumed_from_;
};

}  // namespace tapehead
