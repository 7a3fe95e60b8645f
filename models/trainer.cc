#include "tapehead/models/trainer.h"

#include <cmath>
#include <numbers>

#include "tapehead/core/memory.h"
#include "tapehead/core/op_timer.h"
#include "tapehead/core/stopwatch.h"
#include "tapehead/core/view.h"
#include "tapehead/models/checkpoint.h"

namespace tapehead {

// The loss of training: f32 whatever the model's dtype, and 0 for a micro-batch in which nothing is to be learnt.
static LinearCrossEntropyArgs head_args(const HeadConfig& head) {
  check<ValueError>(head.batch_chunk_size >= 0, "[train] head.batch_chunk_size is {}, and must be at least 0",
                    head.batch_chunk_size);
  check<ValueError>(head.label_smoothing >= 0 && head.label_smoothing <= 1,
                    "[train] head.label_smoothing is {}, and must be in [0, 1]", head.label_smoothing);
  check<ValueError>(head.z_loss >= 0, "[train] head.z_loss is {}, and must be at least 0", head.z_loss);
  LinearCrossEntropyArgs args;
  args.ignore_index = kIgnoredTarget;
  args.loss_dtype = DType::f32;
  args.zero_if_empty = true;
  args.label_smoothing = head.label_smoothing;
  args.z_loss = head.z_loss;
  LinearCrossEntropyOptions::Fields fields = {
      .acc_policy = head.acc_policy, .recompute = head.recompute, .gradient_filter = head.gradient_filter};
  if (head.batch_chunk_size > 0) {
    fields.batch_chunk_size = head.batch_chunk_size;
    fields.chunking_method.reset();
  } else {
    fields.chunking_method = head.chunking_method;
  }
  args.options = LinearCrossEntropyOptions(fields);
  return args;
}

void TrainConfig::validate() const {
  model.validate();
  check<ValueError>(dtype == DType::f32 || dtype == DType::bf16,
                    "[train] dtype is {}: a model is trained in f32 or in bf16", dtype);
  const auto at_least = [](auto value, auto least, const char* field) {
    check<ValueError>(value >= least, "[train] {} is {}: it must be at least {}", field, value, least);
  };
  at_least(steps, 1, "steps");
  at_least(batch_size, 1, "batch_size");
  at_least(micro_batch_size, 0, "micro_batch_size");
  at_least(peak_lr, 0.0, "peak_lr");
  at_least(min_lr, 0.0, "min_lr");
  at_least(warmup_steps, 0, "warmup_steps");
  at_least(optimizer.weight_decay, 0.0, "weight_decay");
  at_least(clip_norm, 0.0, "clip_norm");
  at_least(eval_interval, 0, "eval_interval");
  at_least(save_interval, 0, "save_interval");
  head_args(head);  // throws
  check<ValueError>(std::isfinite(peak_lr) && min_lr <= peak_lr,
                    "[train] min_lr is {} and peak_lr {}: min_lr must not be larger", min_lr, peak_lr);
  check<ValueError>(optimizer.epsilon > 0, "[train] epsilon is {}: it must be positive", optimizer.epsilon);
  for (const double beta : {optimizer.beta1, optimizer.beta2}) {
    check<ValueError>(beta >= 0 && beta < 1, "[train] a beta is {}: it must be in [0, 1)", beta);
  }
}

double bits_per_byte(const Evaluation& evaluation, int64_t bytes) {
  return evaluation.loss * static_cast<double>(evaluation.tokens) /
         (std::numbers::ln2 * static_cast<double>(bytes));
}

static void check_vocabulary(const Dataset& data, const ModelConfig& model) {
  check<ValueError>(
      data.vocab_size() <= model.vocab_size,
      "[train] the tokens are of a vocabulary of {}, the model's has {}: another tokenizer made them",
      data.vocab_size(), model.vocab_size);
}

// ---- Evaluation

Evaluation evaluate(const LanguageModel& model, const Dataset& data, int64_t batch_size,
                    const HeadConfig& head, bool document_mask) {
  check_vocabulary(data, model.config());
  const Windows windows(data, model.config().n_positions, document_mask);
  check<ValueError>(
      windows.size() >= 1,
      "[evaluate] {} tokens have no target: at least 2 are needed, one to predict the other from",
      data.size());
  check<ValueError>(batch_size >= 1, "[evaluate] batch_size is {}: it must be at least 1", batch_size);
  const Stopwatch stopwatch;
  const NoGradGuard no_grad;
  HeadConfig plain = head;  // cross entropy itself, whose gradient nobody wants
  plain.label_smoothing = plain.z_loss = 0;
  LinearCrossEntropyArgs args = head_args(plain);
  args.reduction = Reduction::sum;
  Evaluation evaluation;
  for (int64_t first = 0; first < windows.size(); first += batch_size) {
    const Batch batch = windows.read(first, std::min(batch_size, windows.size() - first));
    evaluation.loss +=
        model.loss(batch.ids.to(model.device()), batch.targets.to(model.device()), args).item();
    evaluation.tokens += batch.target_tokens;
  }
  evaluation.loss /= static_cast<double>(evaluation.tokens);
  evaluation.seconds = stopwatch.seconds();
  return evaluation;
}

// ---- The run

namespace {

// The seeds of a run's other random numbers, made from its own with blocks that initialisation never reaches.
enum class Purpose : uint64_t { order, dropout, filter };

}  // namespace

static uint64_t derive_seed(uint64_t seed, Purpose purpose) {
  const auto words = philox(seed, ~uint64_t{0} - static_cast<uint64_t>(purpose));
  return uint64_t{words[0]} << 32 | words[1];
}

static TrainConfig checked(TrainConfig config, const Dataset& training,
                           const std::optional<Dataset>& held_out) {
  config.validate();
  check_vocabulary(training, config.model);
  if (held_out) check_vocabulary(*held_out, config.model);
  return config;
}

Trainer::Trainer(TrainConfig config, Dataset training, std::optional<Dataset> held_out)
    : config_(checked(std::move(config), training, held_out)),
      training_(std::make_unique<Dataset>(std::move(training))),
      held_out_(std::move(held_out)),
      model_(make_model(config_.model, config_.seed, config_.dtype)),
      optimizer_(model_->parameters(), config_.optimizer),
      batches_(*training_, config_.batch_size, config_.model.n_positions,
               derive_seed(config_.seed, Purpose::order), {}, config_.document_mask),
      dropout_{.seed = derive_seed(config_.seed, Purpose::dropout)},
      filter_{.seed = derive_seed(config_.seed, Purpose::filter)} {
  if (config_.dtype == DType::f32) return;
  const std::unique_ptr<LanguageModel> exact = make_model(config_.model, config_.seed);
  const ParameterList parameters = model_->parameters(), masters = optimizer_.masters();
  const NoGradGuard no_grad;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& value = exact->parameters()[i].second;
    Tensor(masters[i].second).copy_from(value);
    Tensor(parameters[i].second).copy_from(value);
  }
}

Trainer Trainer::resume(const std::string& path, Dataset training, std::optional<Dataset> held_out) {
  const TrainState state = read_train_state(path);
  check<ValueError>(
      state.training_tokens == training.size(),
      "[train] {} was trained on {} tokens, but the training file has {}: resume with the same tokens", path,
      state.training_tokens, training.size());
  Trainer trainer(state.config, std::move(training), std::move(held_out));
  load_tensors(path, *trainer.model_, &trainer.optimizer_);
  trainer.batches_ =
      Batches(*trainer.training_, state.config.batch_size, state.config.model.n_positions,
              derive_seed(state.config.seed, Purpose::order), state.position, state.config.document_mask);
  trainer.dropout_ = state.dropout;
  trainer.filter_ = state.filter;
  return trainer;
}

void Trainer::set_steps(int64_t steps) {
  check<ValueError>(steps >= steps_made(), "[train] {} steps were made already, more than {}", steps_made(),
                    steps);
  config_.steps = steps;
}

void Trainer::save(const std::string& path) const {
  save_checkpoint(path,
                  {.config = config_,
                   .step = steps_made(),
                   .position = batches_.position(),
                   .training_tokens = training_->size(),
                   .dropout = dropout_,
                   .filter = filter_},
                  *model_, &optimizer_);
}

StepMetrics Trainer::step() {
  const Stopwatch stopwatch;
  const CosineSchedule schedule{config_.peak_lr, config_.min_lr, config_.warmup_steps, config_.steps};
  StepMetrics metrics{.step = steps_made() + 1, .epoch = batches_.position().epoch};
  metrics.lr = schedule.at(metrics.step);
  const Batch batch = batches_.next();
  metrics.tokens = batch.target_tokens;
  OpTimer::charge("batches");

  // Every micro-batch divides by the tokens of the whole batch, so that their gradients add up to the batch's own.
  LinearCrossEntropyArgs args = head_args(config_.head);
  args.normalizer = static_cast<double>(batch.target_tokens);
  args.filter_numbers = &filter_;
  args.filter_stats = std::make_shared<GradientFilterStats>();
  const int64_t rows = config_.micro_batch_size > 0 ? config_.micro_batch_size : config_.batch_size;
  try {
    for (int64_t first = 0; first < config_.batch_size; first += rows) {
      metrics.loss += micro_batch(slice(batch.ids, 0, first, first + rows),
                                  slice(batch.targets, 0, first, first + rows), args);
      metrics.filter += *args.filter_stats;
    }
    metrics.grad_norm = optimizer_.step(metrics.lr, config_.clip_norm);
    OpTimer::charge("optimizer");
  } catch (...) {
    zero_grad(model_->parameters());
    throw;
  }
  metrics.seconds = stopwatch.seconds();
  return metrics;
}

double Trainer::micro_batch(const Tensor& ids, const Tensor& targets, const LinearCrossEntropyArgs& args) {
  const Device device = model_->device();
  // The weight's gradient, if an earlier micro-batch made it.
  const int64_t live = memory_stats(device, "head").live_bytes;
  reset_peak(device, "head");
  const Tensor loss = model_->loss(ids.to(device), targets.to(device), args, {.dropout = &dropout_});
  const double value = loss.item();
  backward(loss);

  const int64_t N = ids.numel(), C = config_.model.vocab_size, F = config_.model.n_embd,
                size = size_of(model_->dtype());
  head_.peak_bytes = std::max(head_.peak_bytes, memory_stats(device, "head").peak_bytes - live);
  head_.gradient_bytes = std::max(head_.gradient_bytes, (N + C) * F * size);
  head_.full_logits_bytes = std::max(head_.full_logits_bytes, 2 * N * C * size);
  return value;
}

RunResult Trainer::run(const RunCallbacks& callbacks) {
  RunResult result;
  const auto save = [&] {
    if (callbacks.checkpoint_path.empty()) return;
    this->save(callbacks.checkpoint_path);
    if (callbacks.on_save) callbacks.on_save(callbacks.checkpoint_path);
  };
  const auto evaluate_held_out = [&] {
    if (!held_out_) return;
    result.evaluation =
        evaluate(*model_, *held_out_, config_.batch_size, config_.head, config_.document_mask);
    result.evaluation->step = steps_made();
    if (callbacks.on_evaluation) callbacks.on_evaluation(*result.evaluation);
  };
  const auto is_due = [&](int64_t interval) { return interval > 0 && steps_made() % interval == 0; };
  const auto finished = [&] { return steps_made() >= config_.steps; };
  const auto stopped = [&] { return callbacks.stop && callbacks.stop->load(); };

  while (!finished() && !stopped()) {
    const StepMetrics metrics = step();
    if (callbacks.on_step) callbacks.on_step(metrics);
    if (finished() || stopped()) break;
    if (is_due(config_.eval_interval)) evaluate_held_out();
    if (is_due(config_.save_interval)) save();
  }
  save();
  if (finished()) evaluate_held_out();
  result.finished = finished();
  result.step = steps_made();
  result.head = head_;
  return result;
}

}  // namespace tapehead
