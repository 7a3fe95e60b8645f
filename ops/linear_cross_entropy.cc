#include "tapehead/ops/linear_cross_entropy.h"

#include <algorithm>
#include <limits>

#include "tapehead/core/capture.h"
#include "tapehead/core/log.h"
#include "tapehead/core/view.h"
#include "tapehead/ops/filtered_chunks.h"
#include "tapehead/ops/linear_cross_entropy_plan.h"
#include "tapehead/ops/matmul.h"
#include "tapehead/ops/operands.h"
#include "tapehead/ops/row_loss.h"
#include "tapehead/ops/views.h"

namespace tapehead {
namespace {

constexpr const char* kOp = "linear_cross_entropy";

// ---- The chunk loop

// Where gradients go; undefined ones are not computed.
struct HeadGradients {
  Tensor input;   // (N, F)
  Tensor weight;  // (C, F)
  Tensor bias;    // (C)

  bool any() const { return input.defined() || weight.defined() || bias.defined(); }
};

// A call, checked; the same in forward and in a backward that computes again.
struct Head {
  Tensor input;   // (N, F), dense along F
  Tensor weight;  // (C, F), dense along one of both
  Tensor bias;    // (C), dense, or undefined
  RowLoss rows;   // those that the passes go through
  ResolvedLinearCrossEntropyOptions options;
  PathPlan plan;
  uint64_t filter_seed = 0, filter_first = 0;  // where the gradient filter's random numbers begin
  std::shared_ptr<GradientFilterStats> filter_stats;
};

// x (R, C) seen as rows of the narrower T, each in the first part of its row of x.
Tensor narrowed_in_place(const Tensor& x, DType T) {
  if (x.dtype() == T) return x;
  const int64_t ratio = size_of(x.dtype()) / size_of(T);
  return Tensor::over(x.storage(), {}, T).alias(x.shape(), {x.strides()[0] * ratio, 1}, x.offset() * ratio);
}

// One pass over all rows that count, B at a time, with buffers from `plan`. Tells of each row what `outputs`
// asks for, and writes to `gradients` those of the rows' losses under `upstream`.
void run_chunks(const Head& head, const PassPlan& plan, const Tensor& upstream, const RowOutputs& outputs,
                HeadGradients& gradients) {
  Backend& backend = tapehead::backend(head.weight);
  const Device device = head.weight.device();
  const RowInputs inputs = head.rows.inputs(upstream);
  const Tensor ids = head.rows.ids();  // undefined: all rows count
  const auto buffer = [&](std::string_view name) { return plan.allocate(name, device); };

  if (head.filter_stats && gradients.any()) *head.filter_stats = {};
  if (head.rows.rows() == 0) {
    for (Tensor g : {gradients.input, gradients.weight, gradients.bias}) {
      if (g.defined()) g.fill(head.rows.averages_nothing() ? std::numeric_limits<double>::quiet_NaN() : 0);
    }
    return;
  }
  // Where gradients add up: in buffers of their own where those are wider.
  const auto sums = [&](std::string_view name, const Tensor& gradient) {
    const Tensor wide = buffer(name);
    return wide.defined() ? wide : gradient;
  };
  Tensor weight_sums = sums("weight gradient sums", gradients.weight),
         bias_sums = sums("bias gradient sums", gradients.bias);
  if (bias_sums.defined()) bias_sums.fill(0);
  if (gradients.input.defined() && ids.defined()) gradients.input.fill(0);  // rows that do not count
  const Tensor logits_memory = buffer("logits"), input_rows = buffer("input rows"),
               probability_rows = buffer("probability rows"), gradient_rows = buffer("input gradient rows"),
               own_memory = buffer("target gradients");
  // What the two gradient products read: rounded to the input's dtype, except under accurate.
  const DType product_dtype =
      head.options.acc_policy == AccPolicy::accurate ? logits_memory.dtype() : head.input.dtype();
  const bool scales = product_dtype == DType::f16 && gradients.any();
  if (scales) check_may_wait(kOp, device, "gradients in f16 are scaled by the largest factor of a row");
  const double unit = scales ? inputs.largest_unit() : 1;

  FilteredChunks filtered(plan, {.input = head.input,
                                 .weight = head.weight,
                                 .ids = ids,
                                 .weight_sums = weight_sums,
                                 .bias_sums = bias_sums,
                                 .class_weight = head.rows.class_weight(),
                                 .label_smoothing = head.rows.label_smoothing(),
                                 .logit_scale = head.rows.logit_scale()});
  const Tensor filtered_mass = buffer("filtered mass");
  bool weight_begun = false;

  const int64_t n = head.rows.rows(), B = logits_memory.size(0);
  for (int64_t begin = 0; begin < n; begin += B) {
    const int64_t end = std::min(begin + B, n), b = end - begin;
    const Tensor chunk_ids = row_range(ids, begin, end);

    // Logits (b, C) of the chunk's rows.
    Tensor x = ids.defined() ? row_range(input_rows, 0, b) : row_range(head.input, begin, end);
    if (ids.defined()) backend.gather_rows(head.input, chunk_ids, x);
    Tensor logits = row_range(logits_memory, 0, b);
    backend.matmul(1, x, transposed(head.weight), 0, logits);

    // Their losses, and in their place their gradient.
    CrossEntropyRows pass = head.rows.pass(begin, end, inputs, outputs);
    pass.logits = logits;
    pass.bias = head.bias;
    if (probability_rows.defined()) {
      pass.target_probability = row_range(probability_rows, 0, b);
      backend.gather_rows(head.rows.probabilities(), chunk_ids, pass.target_probability);
    }
    pass.own_gradient = row_range(own_memory, 0, b);
    pass.gradient_unit = unit;
    pass.filter = head.options.gradient_filter;
    pass.filter_seed = head.filter_seed;
    pass.filter_first = head.filter_first;
    pass.filter_row = chunk_ids;
    if (!ids.defined())
      pass.filter_first += static_cast<uint64_t>(begin * filter_blocks(head.weight.size(0)));
    pass.filtered_mass = row_range(filtered_mass, begin, end);
    const bool sparse = filtered.row_pass(pass, x, begin, end, weight_begun);
    if (!sparse) {
      if (gradients.any()) pass.gradient = narrowed_in_place(logits, product_dtype);
      backend.cross_entropy_rows(pass);
    }

    // What that means for input, weight and bias.
    const bool apart = !sparse && pass.own_gradient.defined();
    if (gradients.input.defined()) {
      Tensor gx =
          gradient_rows.defined() ? row_range(gradient_rows, 0, b) : row_range(gradients.input, begin, end);
      sparse ? filtered.input_gradient(gx) : backend.matmul(unit, pass.gradient, head.weight, 0, gx);
      if (apart) backend.gather_add_rows(head.weight, pass.target_index, pass.own_gradient, gx);
      if (ids.defined()) {
        backend.scatter_rows(gx, chunk_ids, gradients.input);
      } else if (gradient_rows.defined()) {
        Tensor rounded = row_range(gradients.input, begin, end);
        backend.copy(gx, rounded);
      }
    }
    if (weight_sums.defined()) {
      if (!sparse) {
        backend.matmul(unit, transposed(pass.gradient), x, weight_begun ? 1 : 0, weight_sums);
        weight_begun = true;
      }
      if (apart) backend.scatter_add_rows(x, pass.target_index, pass.own_gradient, weight_sums);
    }
    if (bias_sums.defined()) {
      if (!sparse) backend.accumulate(pass.gradient, unit, bias_sums);
      if (apart) {
        Tensor column = as_column(bias_sums);
        backend.scatter_add_rows(as_column(pass.own_gradient), pass.target_index, {}, column);
      }
    }
  }
  filtered.finish(weight_begun);
  if (filtered_mass.defined() && head.filter_stats) {
    GradientFilterStats stats = filtered.stats();
    stats.rows = head.rows.count();
    stats.dense_chunks = (n + B - 1) / B - stats.sparse_chunks;
    for (double mass : filtered_mass.to_vector<double>()) stats.filtered_mass += mass;
    *head.filter_stats = stats;
  }
  if (gradients.weight.defined() && !weight_sums.is_same(gradients.weight))
    backend.copy(weight_sums, gradients.weight);
  if (gradients.bias.defined() && !bias_sums.is_same(gradients.bias)) backend.copy(bias_sums, gradients.bias);
}

// Buffers for the gradients of this pass.
HeadGradients make_gradients(const Head& head, const PassPlan& plan) {
  const Device device = head.weight.device();
  return {plan.allocate("input gradient", device), plan.allocate("weight gradient", device),
          plan.allocate("bias gradient", device)};
}

// ---- The chunked path

// Gradients in the shapes of what the caller passed; the buffers themselves, if nobody else holds them.
Gradients hand_on(HeadGradients gradients, const Shape& input_shape) {
  if (gradients.input.defined()) {
    gradients.input = gradients.input.alias(input_shape, input_shape.contiguous_strides(), 0);
  }
  return {std::move(gradients.input), std::move(gradients.weight), std::move(gradients.bias)};
}

HeadGradients scaled(HeadGradients gradients, const Tensor& upstream) {
  for (Tensor* g : {&gradients.input, &gradients.weight, &gradients.bias}) {
    if (g->defined()) tapehead::backend(*g).scale(upstream, *g);
  }
  return gradients;
}

Tensor chunked(const Tensor& input, const Tensor& weight, const Tensor& target, const Head& head,
               const Shape& rows_shape, const LinearCrossEntropyArgs& args) {
  const Tensor& bias = args.bias;
  HeadGradients gradients = make_gradients(head, head.plan.forward);  // none, if backward computes again
  Tensor loss;
  {
    const RowOutputs outputs =
        row_outputs(head.rows.rows(), head.rows.probabilities().defined(), args.stats, head.weight.device());
    run_chunks(head, head.plan.forward, {}, outputs, gradients);
    loss = head.rows.reduce(outputs.loss, args.loss_dtype.value_or(head.input.dtype()));
    if (args.stats) {
      *args.stats = head.rows.statistics(outputs, rows_shape, arithmetic_dtype(head.input.dtype()));
    }
  }
  const Shape input_shape = input.shape();

  // Each row's upstream gradient is needed before the products, or memory is dearer than time:
  // backward makes the pass.
  if (args.reduction == Reduction::none || head.options.recompute) {
    return record(kOp, loss, {input, weight, bias}, {input, weight, bias, target, args.class_weight},
                  [head, input_shape](const Upstream& up) {
                    for (size_t i = 0; i < 5; ++i) up.saved(i);  // throws if one was changed in place
                    HeadGradients fresh = make_gradients(head, head.plan.backward);
                    run_chunks(head, head.plan.backward, up.grad, {}, fresh);
                    return hand_on(std::move(fresh), input_shape);
                  });
  }
  // The gradients were computed while the logits existed, for an upstream gradient of 1.
  // Backward scales them.
  if (head.options.allow_retain_graph) {
    return record(kOp, loss, {input, weight, bias}, {}, [gradients, input_shape](const Upstream& up) {
      const auto copy = [](const Tensor& g) { return g.defined() ? g.clone() : Tensor(); };
      return hand_on(scaled({copy(gradients.input), copy(gradients.weight), copy(gradients.bias)}, up.grad),
                     input_shape);
    });
  }
  return record(
      kOp, loss, {input, weight, bias}, {},
      [gradients = std::move(gradients), input_shape](const Upstream& up) mutable {
        return hand_on(scaled(std::move(gradients), up.grad), input_shape);
      },
      "it scales its gradient buffers in place and hands them on; set allow_retain_graph in "
      "LinearCrossEntropyOptions to keep them");
}

// ---- Which path

// The reference path: the logits, whole, and their cross entropy.
Tensor reference(const Tensor& input, const Tensor& weight, const Tensor& target,
                 const LinearCrossEntropyArgs& args) {
  if (weight.dim() == 2) {
    return cross_entropy_along(kOp, input.dim() - 1, linear(input, weight, args.bias), target, args);
  }
  // (C, d1, ..., dK, F): every position d has a head of its own, all are one product, and
  // classes come second.
  const int64_t F = weight.size(-1);
  std::vector<int64_t> sizes = weight.shape().without(-1).sizes();
  const Tensor flat_bias = args.bias.defined() ? reshape(args.bias, {args.bias.numel()}) : Tensor();
  const Tensor logits =
      linear(input, reshape(weight, {weight.numel() / std::max<int64_t>(F, 1), F}), flat_bias);
  sizes.insert(sizes.begin(), input.size(0));
  return cross_entropy_along(kOp, 1, reshape(logits, sizes), target, args);
}

void check_tensors(const Tensor& input, const Tensor& weight, const Tensor& target, const Tensor& bias) {
  check<TypeError>(is_floating(input.dtype()), "[{}] takes a floating input, not {}", kOp, input.dtype());
  check_devices(kOp, {{"input", input}, {"weight", weight}, {"target", target}, {"bias", bias}});
  check<TypeError>(weight.dtype() == input.dtype(), "[{}] weight of {} for an input of {}", kOp,
                   weight.dtype(), input.dtype());
  check<ValueError>(input.dim() >= 1 && weight.dim() >= 2,
                    "[{}] input of shape {} and weight of shape {}: they are (..., F) and (C, F)", kOp,
                    input.shape(), weight.shape());
  check<ValueError>(weight.dim() == 2 || input.dim() == 2,
                    "[{}] weight of shape {} takes an input (N, F), not {}", kOp, weight.shape(),
                    input.shape());
  check<ValueError>(input.size(-1) == weight.size(-1),
                    "[{}] input of shape {} has {} features, weight of shape {} takes {}", kOp, input.shape(),
                    input.size(-1), weight.shape(), weight.size(-1));
  check<ValueError>(weight.size(0) >= 1, "[{}] weight of shape {} has no class", kOp, weight.shape());
  check<ValueError>(weight.size(-1) >= 1, "[{}] weight of shape {} has no feature", kOp, weight.shape());
  if (bias.defined()) {
    check<TypeError>(bias.dtype() == input.dtype(), "[{}] bias of {} for an input of {}", kOp, bias.dtype(),
                     input.dtype());
    check<ValueError>(bias.shape() == weight.shape().without(-1),
                      "[{}] bias of shape {} for a weight of shape {}: it is {}", kOp, bias.shape(),
                      weight.shape(), weight.shape().without(-1));
  }
}

void warn_ignored(const char* cause) {
  warn_once(
      std::string(kOp) + "/" + cause,
      fmt::format("[{}] options ignored: the chunked path does not take {}, so the whole logits are held",
                  kOp, cause));
}

}  // namespace

GradientFilterStats& GradientFilterStats::operator+=(const GradientFilterStats& other) {
  rows += other.rows;
  filtered_mass += other.filtered_mass;
  sparse_chunks += other.sparse_chunks;
  dense_chunks += other.dense_chunks;
  sparse_rows += other.sparse_rows;
  entries += other.entries;
  return *this;
}

Tensor linear_cross_entropy(const Tensor& input, const Tensor& weight, const Tensor& target,
                            const LinearCrossEntropyArgs& args) {
  check_tensors(input, weight, target, args.bias);
  const Shape rows_shape = input.shape().without(-1);
  Shape logits_shape = rows_shape;
  for (int64_t size : weight.shape().without(-1))
    logits_shape = logits_shape.insert(logits_shape.dim(), size);
  const bool probabilities = target.shape() == logits_shape && is_floating(target.dtype());

  if (!args.options) return reference(input, weight, target, args);
  if (weight.dim() != 2) {
    warn_ignored("a weight (C, d1, ..., dK, F)");
    return reference(input, weight, target, args);
  }
  if (probabilities && target.requires_grad() && grad_enabled()) {
    warn_ignored("class probabilities that require a gradient");
    return reference(input, weight, target, args);
  }

  const int64_t N = rows_shape.numel(), F = weight.size(1), C = weight.size(0);
  check<ValueError>(probabilities || target.shape() == rows_shape,
                    "[{}] target of shape {} for an input of shape {} and {} classes: class indices are {}, "
                    "class probabilities {}",
                    kOp, target.shape(), input.shape(), C, rows_shape, logits_shape);
  if (args.token_weight.defined() && args.token_weight.shape() != rows_shape) {
    fail<ValueError>("[{}] token_weight of shape {} for an input of shape {}: it is {}", kOp,
                     args.token_weight.shape(), input.shape(), rows_shape);
  }
  const Tensor flat_target = target.detach();
  const auto dense_along = [](const Tensor& x) {
    return x.strides()[1] == 1 || x.size(1) == 1 ? x : x.contiguous();
  };
  Head head = {
      .input = dense_along(reshape(input.detach(), {N, F})),
      .weight = weight.strides()[0] == 1 ? weight.detach() : dense_along(weight.detach()),
      .bias = args.bias.defined() ? args.bias.contiguous() : Tensor(),
      .rows = RowLoss(kOp, N, C, input.dtype(),
                      probabilities ? dense_along(reshape(flat_target, {N, C})) : flat_target, probabilities,
                      args, /*live_only=*/true),
      .options = args.options->resolve(N, F, C, input.dtype(), input.device(), probabilities),
      .plan = {},
      .filter_stats = {},
  };
  const LinearCrossEntropyProblem problem = problem_of(input, weight, target, args, head.rows);
  head.plan = plan_chunked(problem, args, head.options);
  head.filter_stats = args.filter_stats;
  if (head.options.gradient_filter.kind != GradientFilter::none)
    check_may_wait(kOp, input.device(), "a gradient_filter counts what it leaves");
  if (head.options.gradient_filter.kind == GradientFilter::stochastic && problem.any_grad()) {
    check<ValueError>(args.filter_numbers != nullptr,
                      "[{}] gradient_filter \"{}\" draws random numbers: filter_numbers says from where", kOp,
                      name(head.options.gradient_filter));
    head.filter_seed = args.filter_numbers->seed;
    head.filter_first = args.filter_numbers->take(N * filter_blocks(C) * 4);
  }
  const Tensor loss = chunked(input, weight, target, head, rows_shape, args);
  return args.reduction == Reduction::none ? reshape(loss, rows_shape.sizes()) : loss;
}

}  // namespace tapehead
