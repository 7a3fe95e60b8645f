#include "tapehead/models/head_trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tapehead/core/safetensors.h"
#include "tapehead/models/batches.h"

namespace tapehead {

LabelledFeatures LabelledFeatures::open(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  for (const char* name : {"features", "targets"}) {
    check<ValueError>(file.contains(name),
                      "[train-head] {} has no tensor \"{}\": it holds features (N, F) and targets (N)", path,
                      name);
  }
  LabelledFeatures data = {.features = file.tensor("features"), .targets = file.tensor("targets")};
  check<ValueError>(data.features.dim() == 2 && is_floating(data.features.dtype()),
                    "[train-head] features of {} are {} of shape {}: they must be floating, (rows, features)",
                    path, data.features.dtype(), data.features.shape());
  check<ValueError>(data.targets.dim() == 1 && !is_floating(data.targets.dtype()),
                    "[train-head] targets of {} are {} of shape {}: they must be integers, one a row", path,
                    data.targets.dtype(), data.targets.shape());
  check<ValueError>(data.features.size(0) == data.targets.size(0),
                    "[train-head] {} has {} rows of features but {} targets: there must be one for each row",
                    path, data.features.size(0), data.targets.size(0));
  if (data.targets.dtype() != DType::i64) data.targets = data.targets.to(DType::i64);
  return data;
}

void HeadTrainConfig::validate() const {
  const auto at_least = [](auto value, auto least, const char* field) {
    check<ValueError>(value >= least, "[train-head] {} is {}: it must be at least {}", field, value, least);
  };
  at_least(classes, 0, "classes");
  at_least(steps, 1, "steps");
  at_least(batch_size, 1, "batch_size");
  at_least(warmup_steps, 0, "warmup_steps");
  at_least(min_lr, 0.0, "min_lr");
  check<ValueError>(std::isfinite(peak_lr) && min_lr <= peak_lr,
                    "[train-head] min_lr is {} and peak_lr {}: min_lr must not be larger", min_lr, peak_lr);
  check<ValueError>(held_out >= 0 && held_out < 1, "[train-head] held_out is {}: it must be in [0, 1)",
                    held_out);
  Schedule{.name = schedule}.at(1);  // throws
  optimizer.validate();
  head.training_args();  // throws
}

// The classes, with every target among them.
static int64_t count_classes(const HeadTrainConfig& config, const LabelledFeatures& data) {
  config.validate();
  const std::span targets(data.targets.data<int64_t>(), static_cast<size_t>(data.targets.numel()));
  const int64_t classes =
      config.classes > 0 ? config.classes : (targets.empty() ? 0 : *std::ranges::max_element(targets) + 1);
  check<ValueError>(classes >= 1, "[train-head] none of the {} targets counts: there is nothing to train on",
                    targets.size());
  for (size_t row = 0; row < targets.size(); ++row) {
    check<ValueError>(
        targets[row] == kIgnoredTarget || (targets[row] >= 0 && targets[row] < classes),
        "[train-head] the target of row {} is {}: it must be in [0, {}), or {} for a row that does not count",
        row, targets[row], classes, kIgnoredTarget);
  }
  return classes;
}

HeadTrainer::HeadTrainer(HeadTrainConfig config, LabelledFeatures data)
    : config_(std::move(config)), data_(std::move(data)), filter_{.seed = config_.seed} {
  config_.classes = count_classes(config_, data_);
  const DType dtype = data_.features.dtype();
  parameters_ = {
      {"weight", Tensor::zeros({config_.classes, data_.features.size(1)}, dtype).set_requires_grad()}};
  if (config_.bias)
    parameters_.emplace_back("bias", Tensor::zeros({config_.classes}, dtype).set_requires_grad());
  optimizer_ = make_optimizer(parameters_, config_.optimizer);

  training_.resize(static_cast<size_t>(data_.targets.numel()));
  std::iota(training_.begin(), training_.end(), int64_t{0});
  shuffle();
  const auto held_out = static_cast<int64_t>(config_.held_out * static_cast<double>(training_.size()));
  held_out_.assign(training_.end() - held_out, training_.end());
  training_.resize(training_.size() - static_cast<size_t>(held_out));
  check<ValueError>(config_.batch_size <= std::ssize(training_),
                    "[train-head] a batch of {} rows, but there are {} to train on: take a smaller batch",
                    config_.batch_size, training_.size());
}

// Fisher and Yates's, from the order before it.
void HeadTrainer::shuffle() {
  Generator generator{.seed = config_.seed, .next = static_cast<uint64_t>(epoch_) << 40};
  for (size_t i = training_.size(); i > 1; --i) std::swap(training_[i - 1], training_[generator.below(i)]);
}

HeadTrainer::Rows HeadTrainer::gather(std::span<const int64_t> rows) const {
  const auto count = static_cast<int64_t>(rows.size());
  const Device host;
  Rows batch = {.features = Tensor({count, data_.features.size(1)}, data_.features.dtype(), host),
                .targets = Tensor({count}, DType::i64, host)};
  const auto row_bytes = static_cast<size_t>(data_.features.bytes() / data_.features.size(0));
  const auto* from = static_cast<const std::byte*>(data_.features.raw_data());
  auto* to = static_cast<std::byte*>(batch.features.mutable_raw_data());
  auto* targets = batch.targets.mutable_data<int64_t>();
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<size_t>(rows[i]);
    std::memcpy(to + i * row_bytes, from + row * row_bytes, row_bytes);
    targets[i] = data_.targets.data<int64_t>()[row];
  }
  const Device device = parameters_[0].second.device();
  return {.features = batch.features.to(device), .targets = batch.targets.to(device)};
}

double HeadTrainer::step() {
  std::vector<int64_t> rows;
  while (std::ssize(rows) < config_.batch_size) {
    if (next_ == training_.size()) {
      ++epoch_;
      next_ = 0;
      shuffle();
    }
    rows.push_back(training_[next_++]);
  }
  const Rows batch = gather(rows);
  LinearCrossEntropyArgs args = config_.head.training_args();
  args.filter_numbers = &filter_;
  if (config_.bias) args.bias = parameters_[1].second;
  const Tensor loss = linear_cross_entropy(batch.features, parameters_[0].second, batch.targets, args);
  backward(loss);
  const double norm = gradient_norm(parameters_);
  if (!std::isfinite(loss.item()) || !std::isfinite(norm)) {
    optimizer_->zero_grad();
    fail<RuntimeError>(
        "[train-head] step {} diverged: its loss is {} and its gradient's norm {}; look for a NaN among the "
        "features, or lower the learning rate",
        steps_made() + 1, loss.item(), norm);
  }
  const Schedule schedule{.name = config_.schedule,
                          .peak = config_.peak_lr,
                          .minimum = config_.min_lr,
                          .warmup = config_.warmup_steps,
                          .steps = config_.steps};
  optimizer_->step(schedule.at(steps_made() + 1));
  optimizer_->zero_grad();
  return loss.item();
}

HeadEvaluation HeadTrainer::evaluate() const {
  check<ValueError>(!held_out_.empty(), "[train-head] no rows are held out to measure on");
  const NoGradGuard no_grad;
  LinearCrossEntropyArgs args = config_.head.evaluation_args();
  CrossEntropyStats stats;
  args.stats = &stats;
  if (config_.bias) args.bias = parameters_[1].second;
  HeadEvaluation evaluation;
  for (size_t first = 0; first < held_out_.size(); first += static_cast<size_t>(config_.batch_size)) {
    const Rows batch = gather(std::span(held_out_).subspan(
        first, std::min(static_cast<size_t>(config_.batch_size), held_out_.size() - first)));
    evaluation.loss +=
        linear_cross_entropy(batch.features, parameters_[0].second, batch.targets, args).item();
    evaluation.rows += stats.rows;
    evaluation.correct_rows += stats.correct_rows;
  }
  evaluation.loss /= static_cast<double>(std::max<int64_t>(evaluation.rows, 1));
  return evaluation;
}

}  // namespace tapehead
