#include "tapehead/models/head_trainer.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tapehead/core/memory.h"
#include "tapehead/models/checkpoint_tensors.h"
#include "tapehead/models/seeds.h"
#include "tapehead/models/shuffle.h"

namespace tapehead {

// ---- Begin and resume

HeadTrainer::HeadTrainer(HeadTrainConfig config, LabelledFeatures data)
    : config_(with_classes(std::move(config), data)),
      data_(std::move(data)),
      identity_(data_.identity()),
      filter_{.seed = derive_seed(config_.seed, Purpose::filter)} {
  const DType dtype = data_.features.dtype();
  parameters_ = {
      {"weight", Tensor::zeros({config_.classes, data_.features.size(1)}, dtype).set_requires_grad()}};
  if (config_.bias)
    parameters_.emplace_back("bias", Tensor::zeros({config_.classes}, dtype).set_requires_grad());
  optimizer_ = make_optimizer(parameters_, config_.optimizer);

  training_.resize(static_cast<size_t>(data_.targets.numel()));
  std::iota(training_.begin(), training_.end(), int64_t{0});
  shuffle(training_, derive_seed(config_.seed, Purpose::split), 0);
  const auto held_out = static_cast<int64_t>(config_.held_out * static_cast<double>(training_.size()));
  held_out_.assign(training_.end() - held_out, training_.end());
  training_.resize(training_.size() - static_cast<size_t>(held_out));
  check<ValueError>(config_.batch_size <= std::ssize(training_),
                    "[train-head] a batch of {} rows, but there are {} to train on: take a smaller batch",
                    config_.batch_size, training_.size());
  const auto* targets = data_.targets.data<int64_t>();
  check<ValueError>(
      held_out == 0 ||
          std::ranges::any_of(held_out_, [&](int64_t row) { return targets[row] != kIgnoredTarget; }),
      "[train-head] none of the {} rows held out has a target that counts: hold out more, or none", held_out);
  order_epoch();
}

HeadTrainer HeadTrainer::resume(const std::string& path, LabelledFeatures data) {
  const CheckpointTensors file(path);
  const HeadTrainState state = file.parse_state(parse_head_state);
  const FeaturesIdentity found = data.identity();
  check<ValueError>(found == state.data,
                    "[train-head] {} was trained on {} rows of {} features in {}, and there are {} of {} in "
                    "{}{}: resume with the "
                    "same features",
                    path, state.data.rows, state.data.features, state.data.dtype, found.rows, found.features,
                    found.dtype, found.targets == state.data.targets ? "" : ", with other targets");
  HeadTrainer trainer(state.config, std::move(data));
  file.load(trainer.parameters_, trainer.optimizer_.get());
  trainer.optimizer_->set_steps(state.optimizer_steps);
  trainer.progress_ = state.progress;
  trainer.epoch_ = state.epoch;
  trainer.order_epoch();
  trainer.next_ = state.next_row;
  trainer.filter_ = state.filter;
  trainer.resumed_from_ = path;
  return trainer;
}

void HeadTrainer::save(const std::string& path) const {
  const HeadTrainState state = {.config = config_,
                                .progress = progress_,
                                .optimizer_steps = optimizer_->steps(),
                                .epoch = epoch_,
                                .next_row = next_,
                                .filter = filter_,
                                .data = identity_};
  write_checkpoint(path, to_json(state), parameters_, optimizer_.get());
}

// ---- Rows

void HeadTrainer::order_epoch() {
  order_ = training_;
  shuffle(order_, derive_seed(config_.seed, Purpose::order), epoch_);
}

HeadTrainer::Rows HeadTrainer::gather(std::span<const int64_t> rows) const {
  const auto count = static_cast<int64_t>(rows.size());
  const Device host;
  Rows batch = {.features = Tensor({count, data_.features.size(1)}, data_.features.dtype(), host),
                .targets = Tensor({count}, DType::i64, host),
                .counted = 0};
  const auto row_bytes = static_cast<size_t>(data_.features.bytes() / data_.features.size(0));
  const auto* from = static_cast<const std::byte*>(data_.features.raw_data());
  auto* to = static_cast<std::byte*>(batch.features.mutable_raw_data());
  auto* targets = batch.targets.mutable_data<int64_t>();
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<size_t>(rows[i]);
    std::memcpy(to + i * row_bytes, from + row * row_bytes, row_bytes);
    targets[i] = data_.targets.data<int64_t>()[row];
    batch.counted += targets[i] != kIgnoredTarget;
  }
  const Device device = parameters_[0].second.device();
  batch.features = batch.features.to(device);
  batch.targets = batch.targets.to(device);
  return batch;
}

HeadTrainer::Rows HeadTrainer::next_batch() {
  std::vector<int64_t> rows;
  while (std::ssize(rows) < config_.batch_size) {
    if (next_ == std::ssize(order_)) {
      ++epoch_;
      next_ = 0;
      order_epoch();
    }
    rows.push_back(order_[static_cast<size_t>(next_++)]);
  }
  return gather(rows);
}

// ---- A step, and what came of it

Tensor HeadTrainer::loss(const Rows& batch, LinearCrossEntropyArgs args) const {
  args.counted_rows = batch.counted;
  if (config_.bias) args.bias = parameters_[1].second;
  const MemoryScope scope("head");
  return linear_cross_entropy(batch.features, parameters_[0].second, batch.targets, args);
}

TrainingRun::StepGradient HeadTrainer::compute_gradient(StepMetrics& metrics) {
  metrics.epoch = epoch_ + (next_ == std::ssize(order_));
  const Rows batch = next_batch();
  metrics.tokens = batch.counted;
  LinearCrossEntropyArgs args = config_.head.training_args();
  args.filter_numbers = &filter_;
  args.filter_stats = std::make_shared<GradientFilterStats>();
  const Tensor mean = loss(batch, args);
  backward(mean);
  const LossAndNorm numbers = read_loss_and_norm(mean.detach().to(DType::f64), parameters_);
  metrics.filter = *args.filter_stats;
  const auto explain = [] {
    return std::string("Look for a NaN among the features, or lower the learning rate");
  };
  return {.numbers = numbers, .explain_divergence = explain};
}

Evaluation HeadTrainer::evaluate() const {
  check<ValueError>(!held_out_.empty(), "[train-head] no rows are held out to measure on");
  const NoGradGuard no_grad;
  LinearCrossEntropyArgs args = config_.head.evaluation_args();
  CrossEntropyStats stats;
  args.stats = &stats;
  EvaluationSum sum;
  const auto size = static_cast<size_t>(config_.batch_size);
  for (size_t first = 0; first < held_out_.size(); first += size) {
    const Rows batch = gather(std::span(held_out_).subspan(first, std::min(size, held_out_.size() - first)));
    sum.add(loss(batch, args), stats);
  }
  return sum.mean();
}

}  // namespace tapehead
