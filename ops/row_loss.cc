#include "tapehead/ops/row_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tapehead/core/compensated_sum.h"

namespace tapehead {
namespace {

constexpr int64_t kDefaultIgnoreIndex = -100;  // torch.nn.functional.cross_entropy's
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The elements in row-major order, without a temporary on the device where x is dense.
std::vector<double> host_values(const Tensor& x) {
  return visit_floating(x.dtype(), "cross_entropy", [&]<class T>(std::type_identity<T>) {
    const std::vector<T> values = x.to_vector<T>();
    std::vector<double> wide;
    wide.reserve(values.size());
    for (T v : values) wide.push_back(static_cast<double>(static_cast<wide_t<T>>(v)));
    return wide;
  });
}

std::vector<int64_t> host_indices(const Tensor& x) {
  return visit_index(x.dtype(), "cross_entropy", [&]<class T>(std::type_identity<T>) {
    const std::vector<T> values = x.to_vector<T>();
    return std::vector<int64_t>(values.begin(), values.end());
  });
}

Tensor device_tensor(const std::vector<double>& values, Shape shape, DType dtype, Device device) {
  return visit_floating(dtype, "cross_entropy", [&]<class T>(std::type_identity<T>) {
    std::vector<T> rounded;
    rounded.reserve(values.size());
    for (double v : values) rounded.push_back(static_cast<T>(v));
    return Tensor::from<T>(std::move(shape), rounded, device);
  });
}

void check_arguments(const char* op, int64_t N, int64_t C, DType dtype, const CrossEntropyArgs& args) {
  check<ValueError>(args.label_smoothing >= 0 && args.label_smoothing <= 1,
                    "[{}] label_smoothing {} is outside [0, 1]", op, args.label_smoothing);
  check<ValueError>(std::isfinite(args.logit_scale), "[{}] logit_scale {} is not finite", op,
                    args.logit_scale);
  const double softcap = args.softcap.value_or(1), normalizer = args.normalizer.value_or(1);
  check<ValueError>(softcap > 0 && std::isfinite(softcap), "[{}] softcap {} is not positive and finite", op,
                    softcap);
  check<ValueError>(args.z_loss >= 0 && std::isfinite(args.z_loss),
                    "[{}] z_loss {} is not a finite number >= 0", op, args.z_loss);
  check<ValueError>(normalizer > 0 && std::isfinite(normalizer),
                    "[{}] normalizer {} is not positive and finite", op, normalizer);
  check<TypeError>(is_floating(args.loss_dtype.value_or(dtype)), "[{}] loss_dtype {} is not floating", op,
                   args.loss_dtype.value_or(dtype));
  if (args.class_weight.defined()) {
    check<ValueError>(args.class_weight.shape() == Shape{C},
                      "[{}] class_weight of shape {} for {} classes: it is ({},)", op,
                      args.class_weight.shape(), C, C);
    check<TypeError>(args.class_weight.dtype() == dtype, "[{}] class_weight of {} for logits of {}", op,
                     args.class_weight.dtype(), dtype);
  }
  if (args.token_weight.defined()) {
    check<ValueError>(args.token_weight.numel() == N, "[{}] token_weight of shape {} for {} rows", op,
                      args.token_weight.shape(), N);
    check<TypeError>(is_floating(args.token_weight.dtype()), "[{}] token_weight of {}: it is floating", op,
                     args.token_weight.dtype());
  }
}

}  // namespace

Tensor row_range(const Tensor& x, int64_t begin, int64_t end) {
  if (!x.defined()) return {};
  return x.alias(x.shape().with(0, end - begin), x.strides(), x.offset() + begin * x.strides()[0]);
}

RowLoss::RowLoss(const char* op, int64_t N, int64_t C, DType dtype, const Tensor& target, bool probabilities,
                 const CrossEntropyArgs& args, bool live_only)
    : N_(N),
      C_(C),
      live_(0),
      zero_if_empty_(args.zero_if_empty),
      reduction_(args.reduction),
      label_smoothing_(args.label_smoothing),
      logit_scale_(args.logit_scale),
      softcap_(args.softcap.value_or(0)),
      z_loss_(args.z_loss),
      device_(target.device()) {
  check_arguments(op, N, C, dtype, args);
  const int64_t ignored = args.ignore_index.value_or(kDefaultIgnoreIndex);
  std::vector<double> class_weight;
  if (probabilities) {
    check<RuntimeError>(!args.ignore_index,
                        "[{}] ignore_index {} with class probabilities: they name no class to ignore", op,
                        ignored);
    check<TypeError>(target.dtype() == dtype, "[{}] class probabilities of {} for logits of {}", op,
                     target.dtype(), dtype);
    probability_ = target.detach();
  } else {
    check<TypeError>(!is_floating(target.dtype()),
                     "[{}] target of shape {} and dtype {}: class indices are i64 or i32, class "
                     "probabilities have the logits' shape",
                     op, target.shape(), target.dtype());
    index_ = host_indices(target);
    if (args.class_weight.defined()) class_weight = host_values(args.class_weight);
  }
  if (args.class_weight.defined()) class_weight_ = args.class_weight.contiguous();
  weight_ = args.token_weight.defined() ? host_values(args.token_weight)
                                        : std::vector<double>(static_cast<size_t>(N), 1.0);

  double total = 0, z_total = 0;
  for (size_t r = 0; r < weight_.size(); ++r) {
    double of_class = 1;
    if (!probabilities) {
      int64_t& t = index_[r];
      if (t == ignored) {
        t = 0;
        weight_[r] = 0;
      }
      check<ValueError>(0 <= t && t < C,
                        "[{}] target {} in row {} is outside [0, {}) and not ignore_index {}", op, t, r, C,
                        ignored);
      if (!class_weight.empty()) of_class = class_weight[static_cast<size_t>(t)];
    }
    if (weight_[r] == 0) continue;
    ++live_;
    total += weight_[r] * of_class;
    z_total += weight_[r];
  }
  if (reduction_ == Reduction::mean && live_ > 0) {
    divisor_ = args.normalizer.value_or(total);
    z_divisor_ = args.normalizer.value_or(z_total);
  }
  if (live_only && live_ < N) {
    for (size_t r = 0; r < weight_.size(); ++r) {
      if (weight_[r] == 0) continue;
      const size_t to = row_.size();
      weight_[to] = weight_[r];
      if (!probabilities) index_[to] = index_[r];
      row_.push_back(static_cast<int64_t>(r));
    }
    weight_.resize(row_.size());
    if (!probabilities) index_.resize(row_.size());
  }
}

double RowInputs::largest_unit() const {
  double largest = 0;
  for (double scale : row_scale.to_vector<double>()) largest = std::max(largest, std::abs(scale));
  return largest > 0 && std::isfinite(largest) ? std::exp2(std::floor(std::log2(largest))) : 1;
}

Tensor RowLoss::ids() const {
  return rows() == N_ ? Tensor() : Tensor::from<int64_t>({rows()}, row_, device_);
}

RowInputs RowLoss::inputs(const Tensor& upstream) const {
  const std::vector<double> given = upstream.defined() ? host_values(upstream) : std::vector<double>{1.0};
  const auto scale = [&](double divisor) {
    std::vector<double> values(weight_);
    for (size_t r = 0; r < values.size(); ++r) {
      values[r] *= given.size() == 1 && reduction_ != Reduction::none ? given[0]
                   : !upstream.defined()                              ? 1.0
                                         : given[row_.empty() ? r : static_cast<size_t>(row_[r])];
      values[r] /= divisor;
    }
    return Tensor::from<double>({rows()}, values, device_);
  };
  RowInputs in;
  if (!probability_.defined()) in.index = Tensor::from<int64_t>({rows()}, index_, device_);
  in.row_scale = scale(divisor_);
  if (z_loss_ > 0) in.z_row_scale = scale(z_divisor_);
  return in;
}

CrossEntropyRows RowLoss::pass(int64_t begin, int64_t end, const RowInputs& inputs,
                               const RowOutputs& outputs) const {
  CrossEntropyRows rows;
  rows.target_index = row_range(inputs.index, begin, end);
  if (row_.empty()) rows.target_probability = row_range(probability_, begin, end);
  rows.class_weight = class_weight_;
  rows.row_scale = row_range(inputs.row_scale, begin, end);
  rows.z_row_scale = row_range(inputs.z_row_scale, begin, end);
  rows.label_smoothing = label_smoothing_;
  rows.logit_scale = logit_scale_;
  rows.softcap = softcap_;
  rows.z_loss = z_loss_;
  rows.loss = row_range(outputs.loss, begin, end);
  rows.lse = row_range(outputs.lse, begin, end);
  rows.target_logprob = row_range(outputs.target_logprob, begin, end);
  rows.entropy = row_range(outputs.entropy, begin, end);
  rows.correct = row_range(outputs.correct, begin, end);
  return rows;
}

Tensor RowLoss::reduce(const Tensor& row_losses, DType dtype) const {
  const std::vector<double> losses = row_losses.to_vector<double>();
  if (reduction_ == Reduction::none) {
    std::vector<double> all(static_cast<size_t>(N_), 0.0);
    for (size_t r = 0; r < losses.size(); ++r)
      all[row_.empty() ? r : static_cast<size_t>(row_[r])] = losses[r];
    return device_tensor(all, {N_}, dtype, device_);
  }
  CompensatedSum total;
  for (double loss : losses) total.add(loss);
  return Tensor::scalar(averages_nothing() ? kNaN : total.value(), dtype, device_);
}

CrossEntropyStats RowLoss::statistics(const RowOutputs& outputs, const Shape& shape, DType dtype) const {
  const auto scattered = [&](const Tensor& x) {
    const std::vector<double> values = x.to_vector<double>();
    std::vector<double> all(static_cast<size_t>(N_), kNaN);
    for (size_t r = 0; r < values.size(); ++r) {
      if (weight_[r] != 0) all[row_.empty() ? r : static_cast<size_t>(row_[r])] = values[r];
    }
    return device_tensor(all, shape, dtype, device_);
  };
  CrossEntropyStats stats;
  stats.lse = scattered(outputs.lse);
  stats.entropy = scattered(outputs.entropy);
  stats.rows = live_;
  const std::vector<double> losses = outputs.loss.to_vector<double>(), lse = outputs.lse.to_vector<double>();
  for (size_t r = 0; r < losses.size(); ++r) {
    if (weight_[r] == 0) continue;
    const double z = z_loss_ * weight_[r] * lse[r] * lse[r];
    stats.z_loss += z;
    stats.loss_sum += (losses[r] - z / z_divisor_) * divisor_;
  }
  if (!probability_.defined()) {
    stats.target_logprob = scattered(outputs.target_logprob);
    std::vector<int64_t> all(static_cast<size_t>(N_), 0);
    const std::vector<int64_t> correct = outputs.correct.to_vector<int64_t>();
    for (size_t r = 0; r < correct.size(); ++r) {
      if (weight_[r] == 0) continue;
      all[row_.empty() ? r : static_cast<size_t>(row_[r])] = correct[r];
      stats.correct_rows += correct[r];
    }
    stats.correct = Tensor::from<int64_t>(shape, all, device_);
  }
  return stats;
}

}  // namespace tapehead
