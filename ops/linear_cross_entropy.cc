#include "tapehead/ops/linear_cross_entropy.h"

#include <algorithm>
#include <limits>

#include "tapehead/core/log.h"
#include "tapehead/core/view.h"
#include "tapehead/ops/matmul.h"
#include "tapehead/ops/row_loss.h"

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

// What the loop reads; the same in forward and in a backward that computes again.
struct Head {
  Tensor input;   // (N, F), dense along F
  Tensor weight;  // (C, F), dense along one of both
  Tensor bias;    // (C), dense, or undefined
  int64_t rows_per_chunk;
};

Tensor row_range(const Tensor& x, int64_t begin, int64_t end) {
  return x.alias(x.shape().with(0, end - begin), x.strides(), x.offset() + begin * x.strides()[0]);
}

Tensor transposed(const Tensor& x) {
  return x.alias({x.size(1), x.size(0)}, {x.strides()[1], x.strides()[0]}, x.offset());
}

// The elements `ids` of x (N): (n).
Tensor gathered(const Tensor& x, const Tensor& ids) {
  Tensor y(ids.shape(), x.dtype(), x.device());
  Tensor rows = y.alias({ids.numel(), 1}, {1, 1}, 0);
  tapehead::backend(x).gather_rows(x.alias({x.numel(), 1}, {1, 1}, x.offset()), ids, rows);
  return y;
}

// One pass over all rows that count, B at a time. Writes every row's loss times its scale to `row_losses` (N)
// f64, where defined, and adds the gradients of their sum to `gradients`, which begin as zeros.
void run_chunks(const Head& head, const RowLoss& all_rows, const Tensor& upstream, Tensor row_losses,
                HeadGradients& gradients) {
  Backend& backend = tapehead::backend(head.weight);
  const int64_t F = head.input.size(1), C = head.weight.size(0);
  const DType T = head.input.dtype();
  const Device device = head.input.device();

  Tensor ids;  // of the rows that count; undefined: all
  const RowLoss rows = all_rows.live_rows(ids);
  const int64_t n = rows.rows(), B = std::min(head.rows_per_chunk, std::max<int64_t>(n, 1));
  Tensor scale = all_rows.row_scale(upstream);
  if (ids.defined()) scale = gathered(scale, ids);

  Tensor live_losses =
      row_losses.defined() && ids.defined() ? Tensor(Shape{n}, DType::f64, device) : row_losses;
  Tensor logits_memory(Shape{B, C}, T, device);
  Tensor input_memory = ids.defined() ? Tensor(Shape{B, F}, T, device) : Tensor();
  Tensor gradient_memory =
      ids.defined() && gradients.input.defined() ? Tensor(Shape{B, F}, T, device) : Tensor();

  for (int64_t begin = 0; begin < n; begin += B) {
    const int64_t end = std::min(begin + B, n);
    const Tensor chunk_ids = ids.defined() ? row_range(ids, begin, end) : Tensor();

    // Logits (b, C) of the chunk's rows.
    Tensor x = ids.defined() ? row_range(input_memory, 0, end - begin) : row_range(head.input, begin, end);
    if (ids.defined()) backend.gather_rows(head.input, chunk_ids, x);
    Tensor logits = row_range(logits_memory, 0, end - begin);
    backend.matmul(1, x, transposed(head.weight), 0, logits);

    // Their losses, and in their place their gradient.
    CrossEntropyRows pass = rows.row_pass(begin, end, scale);
    pass.logits = logits;
    pass.bias = head.bias;
    if (live_losses.defined()) pass.loss = row_range(live_losses, begin, end);
    if (gradients.any()) pass.gradient = logits;
    backend.cross_entropy_rows(pass);

    // What that means for input, weight and bias.
    if (gradients.input.defined()) {
      Tensor gx = row_range(ids.defined() ? gradient_memory : gradients.input, ids.defined() ? 0 : begin,
                            ids.defined() ? end - begin : end);
      backend.matmul(1, logits, head.weight, 0, gx);
      if (ids.defined()) backend.scatter_add_rows(gx, chunk_ids, gradients.input);
    }
    if (gradients.weight.defined()) backend.matmul(1, transposed(logits), x, 1, gradients.weight);
    if (gradients.bias.defined()) backend.accumulate(logits, gradients.bias);
  }

  if (row_losses.defined() && ids.defined()) {
    row_losses.fill(0);
    Tensor table = row_losses.alias({row_losses.numel(), 1}, {1, 1}, 0);
    backend.scatter_add_rows(live_losses.alias({n, 1}, {1, 1}, 0), ids, table);
  }
}

// Buffers for the gradients that are wanted; NaN where a mean averages nothing.
HeadGradients make_gradients(const Head& head, const RowLoss& rows, bool input, bool weight, bool bias) {
  const auto make = [&](bool wanted, const Tensor& like) {
    const double value = rows.averages_nothing() ? std::numeric_limits<double>::quiet_NaN() : 0;
    return wanted ? Tensor::full(like.shape(), value, like.dtype(), like.device()) : Tensor();
  };
  return {make(input, head.input), make(weight, head.weight), make(bias, head.bias)};
}

// ---- The chunked path

// Gradients in the shapes of what the caller passed; the buffers themselves, if nobody else holds them.
Gradients hand_on(HeadGradients gradients, const Shape& input_shape) {
  if (gradients.input.defined()) {
    gradients.input = gradients.input.alias(input_shape, input_shape.contiguous_strides(), 0);
  }
  return {std::move(gradients.input), std::move(gradients.weight), std::move(gradients.bias)};
}

// mean and sum: the gradients are computed while the logits exist, for an upstream gradient of 1. Backward
// scales them.
Tensor chunked_scalar(const Tensor& input, const Tensor& weight, const Tensor& bias, const Head& head,
                      const RowLoss& rows, bool allow_retain_graph) {
  Tensor row_losses(Shape{rows.rows()}, DType::f64, input.device());
  HeadGradients gradients;
  if (grad_enabled()) {
    gradients = make_gradients(head, rows, input.requires_grad(), weight.requires_grad(),
                               bias.defined() && bias.requires_grad());
  }
  run_chunks(head, rows, {}, row_losses, gradients);

  const auto scaled = [](Tensor gradient, const Tensor& upstream) {
    if (gradient.defined()) tapehead::backend(gradient).binary(Binary::mul, gradient, upstream, gradient);
    return gradient;
  };
  const Shape input_shape = input.shape();
  const Tensor loss = rows.reduce(row_losses, input.dtype());
  if (allow_retain_graph) {
    return record(kOp, loss, {input, weight, bias}, {}, [gradients, scaled, input_shape](const Upstream& up) {
      const auto fresh = [&](const Tensor& g) { return g.defined() ? scaled(g.clone(), up.grad) : Tensor(); };
      return hand_on({fresh(gradients.input), fresh(gradients.weight), fresh(gradients.bias)}, input_shape);
    });
  }
  return record(
      kOp, loss, {input, weight, bias}, {},
      [gradients = std::move(gradients), scaled, input_shape](const Upstream& up) mutable {
        return hand_on(
            {scaled(std::move(gradients.input), up.grad), scaled(std::move(gradients.weight), up.grad),
             scaled(std::move(gradients.bias), up.grad)},
            input_shape);
      },
      "it scales its gradient buffers in place and hands them on; set allow_retain_graph in "
      "LinearCrossEntropyOptions to keep them");
}

// none: each row's upstream gradient is needed before the products, so backward makes the pass again.
Tensor chunked_rows(const Tensor& input, const Tensor& weight, const Tensor& bias, const Head& head,
                    const RowLoss& rows) {
  Tensor row_losses(Shape{rows.rows()}, DType::f64, input.device());
  HeadGradients nothing;
  run_chunks(head, rows, {}, row_losses, nothing);
  return record(kOp, rows.reduce(row_losses, input.dtype()), {input, weight, bias}, {input, weight, bias},
                [head, rows, input_shape = input.shape()](const Upstream& up) {
                  for (size_t i = 0; i < 3; ++i) up.saved(i);  // throws if one was changed in place
                  HeadGradients gradients = make_gradients(head, rows, up.needs(0), up.needs(1), up.needs(2));
                  run_chunks(head, rows, up.grad, {}, gradients);
                  return hand_on(std::move(gradients), input_shape);
                });
}

// ---- Which path

// The reference path: the logits, whole, and their cross entropy.
Tensor reference(const Tensor& input, const Tensor& weight, const Tensor& target,
                 const LinearCrossEntropyArgs& args) {
  if (weight.dim() == 2) return cross_entropy(linear(input, weight, args.bias), target, args);
  // (C, d1, ..., dK, F): every position d has a head of its own, all are one product, and classes come
  // second.
  const int64_t F = weight.size(-1);
  std::vector<int64_t> sizes = weight.shape().without(-1).sizes();
  const Tensor flat_bias = args.bias.defined() ? reshape(args.bias, {args.bias.numel()}) : Tensor();
  const Tensor logits =
      linear(input, reshape(weight, {weight.numel() / std::max<int64_t>(F, 1), F}), flat_bias);
  sizes.insert(sizes.begin(), input.size(0));
  return cross_entropy(reshape(logits, sizes), target, args);
}

void check_shapes(const Tensor& input, const Tensor& weight, const Tensor& bias) {
  check<TypeError>(is_floating(input.dtype()), "[{}] takes a floating input, not {}", kOp, input.dtype());
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

Tensor linear_cross_entropy(const Tensor& input, const Tensor& weight, const Tensor& target,
                            const LinearCrossEntropyArgs& args) {
  check_shapes(input, weight, args.bias);
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
  const ResolvedLinearCrossEntropyOptions options =
      args.options->resolve(N, F, C, input.dtype(), input.device(), probabilities);
  const Tensor flat_target = target.detach();
  const RowLoss rows(kOp, N, C, input.dtype(),
                     probabilities ? reshape(flat_target, {N, C}) : reshape(flat_target, {N}), probabilities,
                     args);

  const auto dense_along = [](const Tensor& x) {
    return x.strides()[1] == 1 || x.size(1) == 1 ? x : x.contiguous();
  };
  Head head;
  head.input = dense_along(reshape(input.detach(), {N, F}));
  head.weight = weight.strides()[0] == 1 ? weight.detach() : dense_along(weight.detach());
  head.bias = args.bias.defined() ? args.bias.contiguous() : Tensor();
  head.rows_per_chunk = options.batch_chunk_size;

  if (args.reduction != Reduction::none)
    return chunked_scalar(input, weight, args.bias, head, rows, options.allow_retain_graph);
  const Tensor loss = chunked_rows(input, weight, args.bias, head, rows);
  return reshape(loss, rows_shape.sizes());
}

}  // namespace tapehead
