#include "tapehead/ops/cross_entropy.h"

#include <array>

#include "tapehead/core/view.h"
#include "tapehead/ops/operands.h"
#include "tapehead/ops/row_loss.h"

namespace tapehead {

static constexpr std::array<std::string_view, 3> kReductions = {"mean", "sum", "none"};

std::string_view name(Reduction reduction) { return kReductions.at(static_cast<size_t>(reduction)); }

Reduction parse_reduction(std::string_view text) {
  for (size_t i = 0; i < kReductions.size(); ++i) {
    if (kReductions[i] == text) return static_cast<Reduction>(i);
  }
  fail<ValueError>("reduction \"{}\" is not one of mean, sum, none", text);
}

// logits (N, C), dense; target (N) or (N, C). Saves the logits; backward makes the row pass once more.
static Tensor cross_entropy_of_rows(const char* op, const Tensor& logits, const Tensor& target,
                                    bool probabilities, const Shape& shape, const CrossEntropyArgs& args) {
  const int64_t N = logits.size(0), C = logits.size(1);
  const RowLoss loss(op, N, C, logits.dtype(), target, probabilities, args, /*live_only=*/false);

  Tensor result;
  {
    const RowOutputs outputs = row_outputs(N, probabilities, args.stats != nullptr, logits.device());
    CrossEntropyRows pass = loss.pass(0, N, loss.inputs(), outputs);
    pass.logits = logits.detach();
    backend(logits).cross_entropy_rows(pass);
    result = loss.reduce(outputs.loss, args.loss_dtype.value_or(logits.dtype()));
    if (args.stats) *args.stats = loss.statistics(outputs, shape, arithmetic_dtype(logits.dtype()));
  }
  return record(op, result, {logits, target}, {logits, target, args.class_weight},
                [loss](const Upstream& up) -> Gradients {
                  const Tensor z = up.saved(0);
                  for (size_t i = 1; i < 3; ++i)
                    up.saved(i);  // what `loss` refers to: throws if it was changed
                  const auto make = [&](size_t i) { return up.needs(i) ? Tensor::empty_like(z) : Tensor(); };
                  const RowInputs inputs = loss.inputs(up.grad);
                  CrossEntropyRows back = loss.pass(0, z.size(0), inputs, {});
                  back.logits = z;
                  back.gradient = make(0);
                  back.target_gradient = make(1);
                  backend(z).cross_entropy_rows(back);
                  return {back.gradient, back.target_gradient};
                });
}

Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyArgs& args) {
  check<ValueError>(logits.dim() >= 1,
                    "[cross_entropy] logits of shape (): they are (C), (N, C) or (N, C, d1, ...)");
  return cross_entropy_along("cross_entropy", logits.dim() == 1 ? 0 : 1, logits, target, args);
}

Tensor cross_entropy_along(const char* op, int64_t class_axis, const Tensor& logits, const Tensor& target,
                           const CrossEntropyArgs& args) {
  check<TypeError>(is_floating(logits.dtype()), "[{}] takes floating logits, not {}", op, logits.dtype());
  check_devices(op, {{"logits", logits}, {"target", target}});
  check<ValueError>(logits.size(class_axis) >= 1, "[{}] logits of shape {} have no class", op,
                    logits.shape());
  const bool probabilities = target.shape() == logits.shape() && is_floating(target.dtype());
  const Shape target_shape = logits.shape().without(class_axis);
  check<ValueError>(
      probabilities || target.shape() == target_shape,
      "[{}] target of shape {} for logits of shape {}: class indices are {}, class probabilities {}", op,
      target.shape(), logits.shape(), target_shape, logits.shape());

  // Classes last, rows flattened. A copy only where there are dimensions behind the classes.
  const auto as_rows = [&](const Tensor& x) {
    std::vector<int64_t> order;
    for (int64_t axis = 0; axis < x.dim(); ++axis) {
      if (axis != class_axis) order.push_back(axis);
    }
    order.push_back(class_axis);
    return contiguous(reshape(permute(x, order), {target_shape.numel(), x.size(class_axis)}));
  };
  const Tensor rows = as_rows(logits);
  const Tensor targets = probabilities ? as_rows(target) : reshape(target, {target_shape.numel()});
  check<ValueError>(!args.token_weight.defined() || args.token_weight.shape() == target_shape,
                    "[{}] token_weight of shape {} for logits of shape {}: it is {}", op,
                    args.token_weight.defined() ? args.token_weight.shape() : Shape(), logits.shape(),
                    target_shape);
  const Tensor loss = cross_entropy_of_rows(op, rows, targets, probabilities, target_shape, args);
  return args.reduction == Reduction::none ? reshape(loss, target_shape.sizes()) : loss;
}

}  // namespace tapehead
