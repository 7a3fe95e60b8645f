#include "tapehead/ops/row_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tapehead/ops/operands.h"
#include "tapehead/ops/views.h"

namespace tapehead {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

void check_arguments(const char* op, int64_t N, int64_t C, DType dtype, const Tensor& target,
                     const CrossEntropyArgs& args) {
  check_devices(
      op, {{"target", target}, {"class_weight", args.class_weight}, {"token_weight", args.token_weight}});
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
  const int64_t counted = args.counted_rows.value_or(N);
  check<ValueError>(counted >= 0 && counted <= N, "[{}] counted_rows {} of {} rows", op, counted, N);
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

RowOutputs row_outputs(int64_t n, bool probabilities, bool stats, Device device) {
  const auto column = [&](bool wanted, DType dtype) {
    return wanted ? Tensor(Shape{n}, dtype, device) : Tensor();
  };
  return {.loss = column(true, DType::f64),
          .lse = column(stats, DType::f64),
          .target_logprob = column(stats && !probabilities, DType::f64),
          .entropy = column(stats, DType::f64),
          .correct = column(stats && !probabilities, DType::i64)};
}

Tensor row_range(const Tensor& x, int64_t begin, int64_t end) {
  if (!x.defined()) return {};
  return x.alias(x.shape().with(0, end - begin), x.strides(), x.offset() + begin * x.strides()[0]);
}

RowLoss::RowLoss(const char* op, int64_t N, int64_t C, DType dtype, const Tensor& target, bool probabilities,
                 const CrossEntropyArgs& args, bool live_only)
    : N_(N),
      C_(C),
      reduction_(args.reduction),
      divisor_{.mean = args.reduction == Reduction::mean,
               .normalizer = args.normalizer,
               .zero_if_empty = args.zero_if_empty},
      label_smoothing_(args.label_smoothing),
      logit_scale_(args.logit_scale),
      softcap_(args.softcap.value_or(0)),
      z_loss_(args.z_loss),
      device_(target.device()) {
  check_arguments(op, N, C, dtype, target, args);
  const int64_t ignored = args.ignore_index.value_or(kDefaultIgnoreIndex);
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
    index_ = Tensor({N}, DType::i64, device_);
  }
  if (args.class_weight.defined()) class_weight_ = args.class_weight.contiguous();
  weight_ = Tensor({N}, DType::f64, device_);
  if (args.token_weight.defined()) {
    weight_.alias(args.token_weight.shape(), args.token_weight.shape().contiguous_strides(), 0)
        .copy_from(args.token_weight.detach());
  } else {
    weight_.fill(1);
  }
  divisors_ = Tensor({3}, DType::f64, device_);
  if (live_only) ids_ = Tensor({N}, DType::i64, device_);
  backend(device_).cross_entropy_targets(
      {.target = probabilities ? Tensor() : target.contiguous(),
       .range = {.n = C, .ignored = ignored},
       .class_weight = probabilities ? Tensor() : class_weight_,
       .divisor = divisor_,
       .index = index_,
       .weight = weight_,
       .ids = ids_,
       .divisors = divisors_},
      [op, C, ignored](int64_t row, int64_t index) {
        fail<ValueError>("[{}] target {} in row {} is outside [0, {}) and not ignore_index {}", op, index,
                         row, C, ignored);
      });
  if (!live_only) return;
  int64_t live = args.counted_rows.value_or(N);
  if (counts_rows(device_)) {
    const int64_t found = static_cast<int64_t>(divisors_.data<double>()[2]);
    check<ValueError>(found <= live, "[{}] more rows count than counted_rows {}", op, live);
    live = found;
  } else if (live < N) {
    backend(device_).checked_indices(
        row_range(ids_, live, N), {.n = 0, .ignored = -1}, [op, live](int64_t, int64_t) {
          fail<ValueError>("[{}] more rows count than counted_rows {}", op, live);
        });
  }
  ids_ = counts_rows(device_) && live == N ? Tensor() : row_range(ids_, 0, live);
  index_ = row_range(index_, 0, live);
  weight_ = row_range(weight_, 0, live);
}

int64_t RowLoss::count() const { return static_cast<int64_t>(divisors_.to_vector<double>()[2]); }

double RowInputs::largest_unit() const {
  double largest = 0;
  for (double scale : row_scale.to_vector<double>()) largest = std::max(largest, std::abs(scale));
  return largest > 0 && std::isfinite(largest) ? std::exp2(std::floor(std::log2(largest))) : 1;
}

RowInputs RowLoss::inputs(const Tensor& upstream) const {
  Backend& backend = tapehead::backend(device_);
  RowInputs in;
  if (upstream.defined()) {
    in.upstream = upstream.to(DType::f64).contiguous();
    if (reduction_ == Reduction::none && ids_.defined()) {
      in.upstream_rows = Tensor({rows()}, DType::f64, device_);
      Tensor column = as_column(in.upstream_rows);
      backend.gather_rows(as_column(in.upstream), ids_, column);
    } else {
      in.upstream_rows = in.upstream;
    }
  }
  const auto scale = [&](int64_t divisor) {
    Tensor values({rows()}, DType::f64, device_);
    const Tensor by = divisors_.alias({}, {}, divisor);
    if (rows() == 0) return values;
    if (upstream.defined()) backend.binary(Binary::mul, weight_, in.upstream_rows, values);
    backend.binary(Binary::div, upstream.defined() ? values : weight_, by, values);
    return values;
  };
  in.row_scale = scale(0);
  if (z_loss_ > 0) in.z_row_scale = scale(1);
  return in;
}

CrossEntropyRows RowLoss::pass(int64_t begin, int64_t end, const RowInputs& inputs,
                               const RowOutputs& outputs) const {
  CrossEntropyRows rows;
  rows.target_index = row_range(index_, begin, end);
  if (!ids_.defined()) rows.target_probability = row_range(probability_, begin, end);
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

// (N), with `elsewhere` in rows that were left out.
Tensor RowLoss::scattered(const Tensor& of_rows, double elsewhere, DType dtype) const {
  Tensor all({N_}, dtype, device_);
  if (!ids_.defined()) {
    all.copy_from(of_rows);
    return all;
  }
  all.fill(elsewhere);
  Tensor column = as_column(all);
  backend(device_).scatter_rows(as_column(of_rows), ids_, column);
  return all;
}

Tensor RowLoss::reduce(const Tensor& row_losses, DType dtype) const {
  if (reduction_ == Reduction::none) return scattered(row_losses, 0, dtype);
  Tensor total = Tensor::scalar(averages_nothing() ? kNaN : 0, DType::f64, device_);
  if (rows() > 0) backend(device_).sum(row_losses, 1, total);
  return total.to(dtype);
}

CrossEntropyStats RowLoss::statistics(const RowOutputs& outputs, const Shape& shape, DType dtype) const {
  const std::vector<double> weight = weight_.to_vector<double>(), divisors = divisors_.to_vector<double>();
  // NaN where a row does not count; 0 of integers.
  const auto told = [&]<class T>(Tensor x, T nothing, DType to) {
    if (!ids_.defined()) {
      std::vector<T> values = x.to_vector<T>();
      for (size_t r = 0; r < values.size(); ++r) {
        if (weight[r] == 0) values[r] = nothing;
      }
      if (!values.empty()) backend(device_).copy_from_host(x.mutable_raw_data(), values.data(), x.bytes());
    }
    return scattered(x, static_cast<double>(nothing), to).alias(shape, shape.contiguous_strides(), 0);
  };
  CrossEntropyStats stats;
  stats.lse = told(outputs.lse, kNaN, dtype);
  stats.entropy = told(outputs.entropy, kNaN, dtype);
  stats.rows = static_cast<int64_t>(divisors[2]);
  const std::vector<double> losses = outputs.loss.to_vector<double>(), lse = outputs.lse.to_vector<double>();
  for (size_t r = 0; r < losses.size(); ++r) {
    if (weight[r] == 0) continue;
    const double z = z_loss_ * weight[r] * lse[r] * lse[r];
    stats.z_loss += z;
    stats.loss_sum += (losses[r] - z / divisors[1]) * divisors[0];
  }
  if (!probability_.defined()) {
    stats.target_logprob = told(outputs.target_logprob, kNaN, dtype);
    stats.correct = told(outputs.correct, int64_t{0}, DType::i64);
    const std::vector<int64_t> correct = outputs.correct.to_vector<int64_t>();
    for (size_t r = 0; r < correct.size(); ++r) stats.correct_rows += weight[r] == 0 ? 0 : correct[r];
  }
  return stats;
}

}  // namespace tapehead
