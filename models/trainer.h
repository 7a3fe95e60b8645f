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

#include "tapehead/models/batches.h"
#include "tapehead/models/language_model.h"
#include "tapehead/models/optimizer.h"
#include "tapehead/models/schedule.h"
#include "tapehead/ops/linear_cross_entropy.h"

namespace tapehead {

/// How the head computes the loss, in the words of LinearCrossEntropyArgs and LinearCrossEntropyOptions.
struct HeadConfig {
  std::string chunking_method = "throughput";
  int64_t batch_chunk_size = 0;  ///< rows of logits held at once; 0: the method's choice
  std::string acc_policy = "auto";
  bool recompute = false;
  double label_smoothing = 0;  ///< of training alone
  double z_loss = 0;           ///< of training alone
  std::string gradient_filter = "none";

  bool operator==(const HeadConfig&) const = default;
};

/// Everything that a run depends on besides its tokens. The defaults are those of tools/quickstart.
struct TrainConfig {
  ModelConfig model = {};
  /// Of weights, activations and gradients: f32 or bf16. The loss, statistics of softmax and layer norm, and
  /// what the optimiser keeps are f32 in either case.
  DType dtype = DType::f32;
  int64_t steps = 250;
  int64_t batch_size = 16;       ///< windows of model.n_positions tokens in one step
  int64_t micro_batch_size = 0;  ///< windows computed at once, less memory for the same step; 0: batch_size
  double peak_lr = 1e-3;         ///< the schedule: CosineSchedule
  double min_lr = 1e-4;
  int64_t warmup_steps = 25;
  AdamWOptions optimizer = {};
  double clip_norm = 1;         ///< of the gradient; 0: no clipping
  int64_t eval_interval = 100;  ///< steps between evaluations on the held-out tokens; 0: only at the end
  int64_t save_interval = 0;    ///< steps between checkpoints; 0: only when run() returns
  HeadConfig head = {};
  bool document_mask = false;  ///< attention stays within a document
  uint64_t seed = 0;           ///< of initialisation, order of windows, dropout
  /// Folder of the tokenizer that made the tokens, kept for whoever reads a checkpoint.
  std::string tokenizer = {};

  bool operator==(const TrainConfig&) const = default;

  /// Throws ValueError that names the field, its value and the rule.
  void validate() const;
};

struct StepMetrics {
  int64_t step = 0;  ///< counts from 1
  double loss = 0;   ///< nats per target token, before this step's update
  double lr = 0;
  double grad_norm = 0;             ///< before clipping
  int64_t tokens = 0;               ///< target tokens of this step
  double seconds = 0;               ///< wall time of this step
  int64_t epoch = 0;                ///< that the step's first window is of
  GradientFilterStats filter = {};  ///< of the head's gradient filter; all 0 without one
};

struct Evaluation {
  int64_t step = 0;    ///< steps made before it
  double loss = 0;     ///< nats per target token
  int64_t tokens = 0;  ///< target tokens
  double seconds = 0;
};

/// Bits per byte of text: what losses under different tokenizers are compared by. `bytes` is the size of the text
/// that the evaluated tokens stand for.
double bits_per_byte(const Evaluation& evaluation, int64_t bytes);

/// The head's memory in one micro-batch of N rows, C classes and F features: as counted in the scope "head", and what
/// the full logits would take.
struct HeadMemory {
  int64_t peak_bytes = 0;  ///< counted: everything that the loss and its backward allocated at once
  int64_t gradient_bytes =
      0;  ///< of it, gradients of the hidden state (N, F) and the weight (C, F): any path's
  int64_t full_logits_bytes = 0;  ///< (N, C) logits and their gradient, which the chunks replace
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

/// Mean loss of `model` over all windows of `data`, each target counted once. No gradient, no dropout.
/// Throws ValueError if there is no target, or the tokens' vocabulary is larger than the model's.
Evaluation evaluate(const LanguageModel& model, const Dataset& data, int64_t batch_size = 16,
                    const HeadConfig& head = {}, bool document_mask = false);

class Trainer {
 public:
  /// Throws ValueError if the config is invalid, the tokens' vocabulary is larger than the model's, or there are too
  /// few tokens for a batch. The master weights of a bf16 model begin as the f32 model of the same seed, the
  /// model as their rounding.
  Trainer(TrainConfig config, Dataset training, std::optional<Dataset> held_out = std::nullopt);

  /// Continues the run that wrote the checkpoint at `path`, bit for bit as if it had never stopped, given the
  /// same tokens. Errors of read_train_state and load_tensors, and those above.
  static Trainer resume(const std::string& path, Dataset training,
                        std::optional<Dataset> held_out = std::nullopt);

  /// Runs the steps that are left, evaluates and saves as the config says. An exception of a callback ends the run
  /// between two steps.
  RunResult run(const RunCallbacks& callbacks = {});

  /// One step. Throws RuntimeError where the gradient is no finite number. Whatever is thrown, parameters, moments
  /// and step count are as before and no gradient is left; data and dropout have moved on.
  StepMetrics step();

  /// Writes a checkpoint (checkpoint.h).
  void save(const std::string& path) const;

  const TrainConfig& config() const { return config_; }
  /// Changes how far the run goes, for example after a resume. Throws ValueError below the steps already made.
  void set_steps(int64_t steps);
  const LanguageModel& model() const { return *model_; }
  int64_t steps_made() const { return optimizer_.steps(); }
  HeadMemory head_memory() const { return head_; }

 private:
  /// Forward and backward, and the head's memory. The loss.
  double micro_batch(const Tensor& ids, const Tensor& targets, const LinearCrossEntropyArgs& args);

  TrainConfig config_;
  std::unique_ptr<Dataset> training_;
  std::optional<Dataset> held_out_;
  std::unique_ptr<LanguageModel> model_;
  AdamWOptimizer optimizer_;
  Batches batches_;
  Generator dropout_, filter_;
  HeadMemory head_;
};

}  // namespace tapehead
