#include "tapehead/ops/row_loss.h"

#include <algorithm>
#include <limits>

namespace tapehead {

static constexpr int64_t kDefaultIgnoreIndex = -100;  // torch.nn.functional.cross_entropy's

RowLoss::RowLoss(const char* op, int64_t N, int64_t C, DType dtype, const Tensor& target, bool probabilities,
                 const CrossEntropyArgs& args)
    : N_(N), C_(C), live_(N), reduction_(args.reduction), label_smoothing_(args.label_smoothing) {
  check<ValueError>(args.label_smoothing >= 0 && args.label_smoothing <= 1,
                    "[{}] label_smoothing {} is outside [0, 1]", op, args.label_smoothing);
  check<ValueError>(!args.normalizer || *args.normalizer > 0, "[{}] normalizer {} is not positive", op,
                    args.normalizer.value_or(0));
  if (args.class_weight.defined()) {
    check<ValueError>(args.class_weight.shape() == Shape{C},
                      "[{}] class_weight of shape {} for {} classes: it is ({},)", op,
                      args.class_weight.shape(), C, C);
    check<TypeError>(args.class_weight.dtype() == dtype, "[{}] class_weight of {} for logits of {}", op,
                     args.class_weight.dtype(), dtype);
    class_weight_ = args.class_weight.contiguous();
  }

  std::vector<double> weight(static_cast<size_t>(N), 1.0);
  double total = static_cast<double>(N);
  if (probabilities) {
    check<RuntimeError>(!args.ignore_index,
                        "[{}] ignore_index {} with class probabilities: they name no class to ignore", op,
                        args.ignore_index.value_or(0));
    check<TypeError>(target.dtype() == dtype, "[{}] class probabilities of {} for logits of {}", op,
                     target.dtype(), dtype);
    probability_ = target.detach();
  } else {
    check<TypeError>(!is_floating(target.dtype()),
                     "[{}] target of shape {} and dtype {}: class indices are i64 or i32, class "
                     "probabilities have the logits' shape",
                     op, target.shape(), target.dtype());
    const int64_t ignored = args.ignore_index.value_or(kDefaultIgnoreIndex);
    std::vector<int64_t> index = target.to_vector<int64_t>();
    const std::vector<double> class_weight =
        class_weight_.defined() ? class_weight_.to_vector<double>() : std::vector<double>();
    total = 0;
    for (int64_t r = 0; r < N; ++r) {
      int64_t& t = index[static_cast<size_t>(r)];
      if (t == ignored) {
        t = 0;
        weight[static_cast<size_t>(r)] = 0;
        --live_;
        continue;
      }
      check<ValueError>(0 <= t && t < C,
                        "[{}] target {} in row {} is outside [0, {}) and not ignore_index {}", op, t, r, C,
                        ignored);
      total += class_weight.empty() ? 1 : class_weight[static_cast<size_t>(t)];
    }
    index_ = Tensor::from<int64_t>({N}, index, target.device());
  }
  row_weight_ = Tensor::from<double>({N}, weight, target.device());
  if (reduction_ == Reduction::mean) divisor_ = args.normalizer.value_or(total);
}

RowLoss RowLoss::live_rows(Tensor& ids) const {
  ids = {};
  if (live_ == N_) return *this;
  std::vector<int64_t> live, index;
  std::vector<double> weight;
  const std::vector<int64_t> all_index = index_.to_vector<int64_t>();
  const std::vector<double> all_weight = row_weight_.to_vector<double>();
  for (size_t r = 0; r < all_index.size(); ++r) {
    if (all_weight[r] == 0) continue;
    live.push_back(static_cast<int64_t>(r));
    index.push_back(all_index[r]);
    weight.push_back(all_weight[r]);
  }
  const Device device = row_weight_.device();
  ids = Tensor::from<int64_t>({live_}, live, device);
  RowLoss rows = *this;
  rows.N_ = live_;
  rows.index_ = Tensor::from<int64_t>({live_}, index, device);
  rows.row_weight_ = Tensor::from<double>({live_}, weight, device);
  return rows;
}

Tensor RowLoss::row_scale(const Tensor& upstream) const {
  Tensor scale(Shape{N_}, DType::f64, row_weight_.device());
  Backend& b = backend(scale);
  b.binary(Binary::div, row_weight_, Tensor::scalar(divisor_, DType::f64, scale.device()), scale);
  if (upstream.defined()) {
    b.binary(Binary::mul, scale, upstream.to(DType::f64), scale);
  }
  return scale;
}

// Rows [begin, end) of x, as a view.
static Tensor row_range(const Tensor& x, int64_t begin, int64_t end) {
  if (!x.defined()) return {};
  return x.alias(x.shape().with(0, end - begin), x.strides(), x.offset() + begin * x.strides()[0]);
}

CrossEntropyRows RowLoss::row_pass(int64_t begin, int64_t end, const Tensor& row_scale) const {
  CrossEntropyRows rows;
  rows.target_index = row_range(index_, begin, end);
  rows.target_probability = row_range(probability_, begin, end);
  rows.class_weight = class_weight_;
  rows.row_scale = row_range(row_scale, begin, end);
  rows.label_smoothing = label_smoothing_;
  return rows;
}

Tensor RowLoss::reduce(const Tensor& row_losses, DType dtype) const {
  if (reduction_ == Reduction::none) return row_losses.to(dtype);
  if (averages_nothing())
    return Tensor::scalar(std::numeric_limits<double>::quiet_NaN(), dtype, row_losses.device());
  Tensor total(Shape{1}, DType::f64, row_losses.device());
  backend(total).sum(row_losses, 1, total);
  return total.to(dtype).alias({}, {}, 0);
}

}  // namespace tapehead
