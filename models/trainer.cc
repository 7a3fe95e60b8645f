#include "tapehead/models/trainer.h"

#include "tapehead/core/anomaly_guard.h"
#include "tapehead/core/op_timer.h"
#include "tapehead/models/checkpoint.h"
#include "tapehead/models/freeze.h"
#include "tapehead/models/seeds.h"
#include "tapehead/models/tokenizer_match.h"

namespace tapehead {

// ---- Begin and resume

namespace {

TrainConfig checked(TrainConfig config, const Dataset& training, const std::optional<Dataset>& held_out) {
  config.validate();
  check_vocabulary(training, config.model);
  if (held_out) {
    check_vocabulary(*held_out, config.model);
    check_same_tokenizer({"the tokens to train on", training.tokenizer_hash()},
                         {"those held out", held_out->tokenizer_hash()}, "encode both with one tokenizer");
  }
  return config;
}

std::unique_ptr<LanguageModel> begin_model(const TrainConfig& config, Initializer::Values values) {
  std::unique_ptr<LanguageModel> model =
      make_model(config.model, {.generator = {.seed = config.seed}, .dtype = config.dtype, .values = values});
  if (!config.freeze.empty()) freeze(model->parameters(), config.freeze);
  return model;
}

// Copies `weights`, which are all of the model's in its order, to those of them that `list` names.
void copy_weights(const ParameterList& weights, const ParameterList& list) {
  const NoGradGuard no_grad;
  auto weight = weights.begin();
  for (const auto& [name, tensor] : list) {
    while (weight->first != name) ++weight;
    Tensor(tensor).copy_from(weight->second);
  }
}

}  // namespace

Trainer::Trainer(TrainConfig config, Dataset training, std::optional<Dataset> held_out,
                 Initializer::Values values)
    : config_(checked(std::move(config), training, held_out)),
      training_(std::make_unique<Dataset>(std::move(training))),
      held_out_(std::move(held_out)),
      model_(begin_model(config_, values)),
      batches_(*training_, config_.batch_size, config_.model.n_positions,
               derive_seed(config_.seed, Purpose::order), {}, config_.document_mask),
      numbers_{.dropout = {.seed = derive_seed(config_.seed, Purpose::dropout)},
               .filter = {.seed = derive_seed(config_.seed, Purpose::filter)}} {
  optimizer_ = make_optimizer(model_->parameters(), config_.optimizer);
}

// A model of 16 bits and its master weights begin from exact ones: nothing is rounded twice.
Trainer::Trainer(TrainConfig config, Dataset training, std::optional<Dataset> held_out,
                 const std::string& from)
    : Trainer(config, std::move(training), std::move(held_out),
              from.empty() && !is_half(config.dtype) ? Initializer::drawn : Initializer::unset) {
  if (!from.empty()) {
    check_same_tokenizer({from, read_train_state(from).tokenizer_hash},
                         {"the tokens to train on", training_->tokenizer_hash()},
                         "encode the text with the tokenizer that the weights were trained with");
  } else if (!is_half(config_.dtype)) {
    return;
  }
  const ParameterList weights =
      from.empty() ? make_model(config_.model, config_.seed)->parameters() : read_weights(from, *model_);
  copy_weights(weights, model_->parameters());
  copy_weights(weights, optimizer_->masters());
}

Trainer Trainer::resume(const std::string& path, Dataset training, std::optional<Dataset> held_out) {
  const TrainState state = read_train_state(path);
  check<ValueError>(
      state.training_tokens == training.size(),
      "[train] {} was trained on {} tokens, but the training file has {}: resume with the same tokens", path,
      state.training_tokens, training.size());
  check_same_tokenizer({path, state.tokenizer_hash}, {"the tokens to go on with", training.tokenizer_hash()},
                       "resume with the same tokens");
  Trainer trainer(state.config, std::move(training), std::move(held_out), Initializer::unset);
  load_tensors(path, *trainer.model_, trainer.optimizer_.get());
  trainer.batches_ =
      Batches(*trainer.training_, state.config.batch_size, state.config.model.n_positions,
              derive_seed(state.config.seed, Purpose::order), state.position, state.config.document_mask);
  trainer.numbers_ = state.numbers;
  trainer.progress_ = state.progress;
  trainer.resumed_from_ = path;
  return trainer;
}

void Trainer::save(const std::string& path) const {
  save_checkpoint(path,
                  {.config = config_,
                   .progress = progress_,
                   .optimizer_steps = optimizer_->steps(),
                   .position = batches_.position(),
                   .training_tokens = training_->size(),
                   .tokenizer_hash = training_->tokenizer_hash(),
                   .numbers = numbers_},
                  *model_, optimizer_.get());
}

// ---- A step

void Trainer::capture_steps() {
  CapturedStep::check_possible(config_, model_->device());
  captures_ = true;
}

TrainingRun::StepGradient Trainer::compute_gradient(StepMetrics& metrics) {
  const DataPosition position = batches_.position();
  metrics.epoch = position.epoch + (position.window == batches_.windows());
  const Batch batch = batches_.next();
  metrics.tokens = batch.target_tokens;
  OpTimer::charge("batches");
  const auto explain = [this, batch, numbers = numbers_] { return explain_divergence(batch, numbers); };
  if (captures_ && CapturedStep::fits(batch)) {
    if (!captured_)
      captured_ = std::make_unique<CapturedStep>(*model_, *optimizer_, config_, batch, numbers_);
    head_.include(captured_->head());
    return {.numbers = captured_->gradient(batch, numbers_),
            .explain_divergence = explain,
            .update = [this](double lr, double scale) { captured_->update(lr, scale); }};
  }
  const BatchGradient result = add_batch_gradient(*model_, batch, config_, numbers_);
  metrics.filter = result.filter;
  head_.include(result.head);
  return {.numbers = read_loss_and_norm(result.loss, optimizer_->parameters()),
          .explain_divergence = explain};
}

std::string Trainer::explain_divergence(const Batch& batch, StepNumbers numbers) const {
  std::string cause = "every operation alone gives numbers that are finite";
  try {
    const AnomalyGuard anomaly;
    add_batch_gradient(*model_, batch, config_, numbers);
  } catch (const RuntimeError& e) {
    cause = e.what();
  } catch (const OutOfMemoryError& e) {  // a recorded step keeps its memory
    cause = fmt::format("not found, for want of memory ({})", e.what());
  }
  return fmt::format(
      "The first operation: {}. The last checkpoint is as it was: begin a run from it with a lower learning "
      "rate, a longer warm-up, or steps skipped by z-score",
      cause);
}

Evaluation Trainer::evaluate_held_out() const {
  return evaluate(*model_, *held_out_, config_.batch_size, config_.head, config_.document_mask);
}

}  // namespace tapehead
