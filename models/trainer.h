// Training a language model from tokens.
//
//   Trainer trainer(config, TokenFile::open("train.tokens"), TokenFile::open("held_out.tokens"));
//   trainer.run({.on_step = [](const StepMetrics& m) { fmt::print("{} {}\n", m.step, m.loss); }});
//   trainer.save("run/checkpoint.safetensors");
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tapehead/models/captured_step.h"
#include "tapehead/models/train_state.h"
#include "tapehead/models/training_run.h"

namespace tapehead {

/// The model, and all that goes with it, is on the device that is the default one when the trainer is made.
/// Where a step's loss or gradient is no finite number, the error names the first operation that made one
/// (AnomalyGuard, on the step computed again).
class Trainer final : public TrainingRun {
 public:
  /// `from`: a checkpoint whose weights the model takes over; empty: random ones, by seed. Throws ValueError
  /// if the config is invalid, the tokens' vocabulary is larger than the model's or of another tokenizer than
  /// `from`'s, or there are too few tokens for a batch; what freeze() and read_weights() throw. The master
  /// weights of a bf16 model begin as the f32 model of the same seed or `from`'s weights, the model as their
  /// rounding.
  Trainer(TrainConfig config, Dataset training, std::optional<Dataset> held_out = std::nullopt,
          const std::string& from = "");

  /// Continues the run that wrote the checkpoint at `path`, bit for bit as if it had never stopped, given the
  /// same tokens. Errors of read_train_state and load_tensors, and those above.
  static Trainer resume(const std::string& path, Dataset training,
                        std::optional<Dataset> held_out = std::nullopt);

  /// From now on the device records the first step whose rows are full of targets, and is asked for it again
  /// (captured_step.h), with the same bits. A step whose rows are not is computed without. Throws ValueError
  /// where steps of this run cannot be recorded.
  void capture_steps();

  /// A checkpoint of checkpoint.h.
  void save(const std::string& path) const override;

  const TrainConfig& config() const override { return config_; }
  const LanguageModel& model() const { return *model_; }
  /// Of the steps that were made here, the most.
  HeadMemory head_memory() const { return head_; }
  bool has_recorded() const { return captured_ != nullptr; }
  /// Device memory that the recorded step has for itself; 0 while there is none.
  int64_t recorded_bytes() const { return captured_ ? captured_->reserved_bytes() : 0; }

 private:
  /// One whose parameters have such values.
  Trainer(TrainConfig config, Dataset training, std::optional<Dataset> held_out, Initializer::Values values);

  StepGradient compute_gradient(StepMetrics& metrics) override;
  std::string explain_divergence(const Batch& batch, StepNumbers numbers) const;
  bool has_held_out() const override { return held_out_.has_value(); }
  Evaluation evaluate_held_out() const override;
  const char* command() const override { return "train"; }
  TrainConfig& own_config() override { return config_; }

  TrainConfig config_;
  std::unique_ptr<Dataset> training_;
  std::optional<Dataset> held_out_;
  std::unique_ptr<LanguageModel> model_;
  Batches batches_;
  StepNumbers numbers_;
  HeadMemory head_;
  bool captures_ = false;
  std::unique_ptr<CapturedStep> captured_;
};

}  // namespace tapehead
