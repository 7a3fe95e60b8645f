#include "tapehead/ops/linear_cross_entropy_plan.h"

#include <algorithm>

#include "tapehead/ops/filtered_chunks.h"
#include "tapehead/ops/row_loss.h"

namespace tapehead {

std::string_view name(Lifetime lifetime, bool in_backward) {
  switch (lifetime) {
    case Lifetime::chunk: return "chunk";
    case Lifetime::pass: return in_backward ? "backward" : "forward";
    case Lifetime::until_backward: return "until backward";
    case Lifetime::result: return "result";
  }
  return "";
}

Tensor PassPlan::allocate(std::string_view name, Device device) const {
  const auto found =
      std::find_if(buffers.begin(), buffers.end(), [&](const PlannedBuffer& b) { return b.name == name; });
  return found == buffers.end() ? Tensor() : Tensor(found->shape, found->dtype, device);
}

int64_t PassPlan::bytes(Lifetime lifetime) const {
  int64_t total = 0;
  for (const PlannedBuffer& b : buffers) total += b.lifetime == lifetime ? b.bytes() : 0;
  return total;
}

LinearCrossEntropyProblem problem_of(const Tensor& input, const Tensor& weight, const Tensor& target,
                                     const LinearCrossEntropyArgs& args, const RowLoss& rows) {
  const auto wants = [](const Tensor& x) { return x.defined() && x.requires_grad() && grad_enabled(); };
  const int64_t N = input.shape().without(-1).numel();
  return {.N = N,
          .F = weight.size(1),
          .C = weight.size(0),
          .dtype = input.dtype(),
          .device = input.device(),
          .probabilities = is_floating(target.dtype()),
          .bias = args.bias.defined(),
          .stats = args.stats != nullptr,
          .input_grad = wants(input),
          .weight_grad = wants(weight),
          .bias_grad = wants(args.bias),
          .ignored_rows = N - rows.rows()};
}

LinearCrossEntropyProblem problem_of(const Tensor& input, const Tensor& weight, const Tensor& target,
                                     const LinearCrossEntropyArgs& args) {
  const RowLoss rows("linear_cross_entropy", input.shape().without(-1).numel(), weight.size(0), input.dtype(),
                     target, is_floating(target.dtype()), args, /*live_only=*/true);
  return problem_of(input, weight, target, args, rows);
}

bool LinearCrossEntropyProblem::picks_rows() const { return !counts_rows(device) || ignored_rows > 0; }

namespace {

// Adds buffers that are wanted, and counts them.
struct Builder {
  // A peak adds up what at most three passes' buffers take.
  static constexpr int64_t kMost = int64_t{1} << 61;

  PassPlan& pass;
  int64_t bytes = 0;

  void add(bool wanted, std::string name, DType dtype, Shape shape, Lifetime lifetime) {
    if (!wanted) return;
    const int64_t more = bytes_of(shape, dtype);
    check<ValueError>(more <= kMost - bytes,
                      "[linear_cross_entropy] {} of shape {} and dtype {}, and {} bytes besides: more than a "
                      "pass may take, {}",
                      name, shape, dtype, bytes, kMost);
    bytes += more;
    pass.buffers.push_back({std::move(name), dtype, std::move(shape), lifetime});
  }
};

// What RowLoss keeps of N rows.
void add_targets(Builder& b, int64_t N, bool ids, bool probabilities, Lifetime lifetime) {
  b.add(!probabilities, "row targets", DType::i64, {N}, lifetime);
  b.add(true, "row weights", DType::f64, {N}, lifetime);
  b.add(true, "divisors", DType::f64, {3}, lifetime);
  b.add(ids, "row ids", DType::i64, {N}, lifetime);
}

// What the row pass reads of n rows; what it tells of them.
void add_scales(Builder& b, int64_t n, bool z_loss) {
  b.add(true, "row scales", DType::f64, {n}, Lifetime::pass);
  b.add(z_loss, "row z-loss scales", DType::f64, {n}, Lifetime::pass);
}

// In backward: under the gradient of the loss.
void add_upstream_scales(Builder& b, int64_t n, bool ids, const LinearCrossEntropyProblem& p,
                         const CrossEntropyArgs& args) {
  const bool none = args.reduction == Reduction::none;
  b.add(args.loss_dtype.value_or(p.dtype) != DType::f64, "upstream gradient", DType::f64,
        none ? Shape{p.N} : Shape(), Lifetime::pass);
  b.add(none && ids, "upstream gradient rows", DType::f64, {n}, Lifetime::pass);
  add_scales(b, n, args.z_loss > 0);
}

void add_outputs(Builder& b, int64_t n, bool probabilities, bool stats) {
  b.add(true, "row losses", DType::f64, {n}, Lifetime::pass);
  b.add(stats, "row lse", DType::f64, {n}, Lifetime::pass);
  b.add(stats && !probabilities, "row target log-probabilities", DType::f64, {n}, Lifetime::pass);
  b.add(stats, "row entropies", DType::f64, {n}, Lifetime::pass);
  b.add(stats && !probabilities, "row correct", DType::i64, {n}, Lifetime::pass);
}

// Whether the gradient's entries at the targets, each row's largest, go to the sums apart from the
// products: there they would round what comes after them. Where sums are of 16 bits, each such
// addition would itself round.
bool keeps_targets_apart(const ResolvedLinearCrossEntropyOptions& options, DType T, bool probabilities) {
  return !probabilities &&
         (!is_half(T) || (options.acc_dtype != T && options.acc_policy != AccPolicy::compact));
}

// The buffers of the chunk loop over n rows. The gradients themselves live as long as `lifetime` says.
void add_chunk_loop(Builder& b, const LinearCrossEntropyProblem& p, const CrossEntropyArgs& args,
                    const ResolvedLinearCrossEntropyOptions& options, int64_t n, bool gradients,
                    Lifetime lifetime) {
  const DType T = p.dtype, A = options.acc_dtype;
  const bool wide = A != T, picks = p.picks_rows();
  const int64_t B = std::min(options.batch_chunk_size, std::max<int64_t>(n, 1));
  const bool input = gradients && p.input_grad, weight = gradients && p.weight_grad,
             bias = gradients && p.bias && p.bias_grad;
  const bool any = input || weight || bias, smooths = args.label_smoothing > 0;
  const Tuning speed = tuning(p.device, T);
  const int64_t S = any && !p.probabilities && !(smooths && args.softcap)
                        ? sparse_entries(options.gradient_filter, p.C, speed)
                        : 0;
  const bool accurate = wide && options.acc_policy == AccPolicy::accurate;
  // Sparse products are followed by others, so 16 bits would round twice.
  const DType rows_dtype = accurate ? A : S > 0 ? arithmetic_dtype(T) : T;

  b.add(input, "input gradient", T, {p.N, p.F}, lifetime);
  b.add(weight, "weight gradient", T, {p.C, p.F}, lifetime);
  b.add(bias, "bias gradient", T, {p.C}, lifetime);
  if (n == 0) return;
  b.add(weight && wide && options.acc_policy != AccPolicy::compact, "weight gradient sums", A, {p.C, p.F},
        Lifetime::pass);
  b.add(bias && T != DType::f64, "bias gradient sums", T == DType::f32 ? DType::f64 : A, {p.C},
        Lifetime::pass);
  b.add(true, "logits", A, {B, p.C}, Lifetime::chunk);
  b.add(any && keeps_targets_apart(options, T, p.probabilities), "target gradients", DType::f64, {B},
        Lifetime::chunk);
  b.add(picks, "input rows", T, {B, p.F}, Lifetime::chunk);
  b.add(picks && p.probabilities, "probability rows", T, {B, p.C}, Lifetime::chunk);
  b.add(input && (picks || rows_dtype != T), "input gradient rows", rows_dtype, {B, p.F}, Lifetime::chunk);

  b.add(any && options.gradient_filter.kind != GradientFilter::none, "filtered mass", DType::f64, {n},
        Lifetime::pass);
  if (S == 0) return;
  const int64_t P = sparse_window(S, p.C, B, n, speed);
  const DType W = arithmetic_dtype(T);
  b.add(true, "kept counts", DType::i64, {P}, Lifetime::pass);
  b.add(true, "kept classes", DType::i32, {P, S}, Lifetime::pass);
  b.add(true, "kept gradients", W, {P, S}, Lifetime::pass);
  b.add(smooths, "smoothed classes", W, {1, p.C}, Lifetime::pass);
  b.add(smooths, "smoothed row scales", W, {B, 1}, Lifetime::chunk);
  b.add(smooths && input, "smoothed weight", W, {1, p.F}, Lifetime::pass);
  b.add(smooths && weight, "smoothed input", W, {1, p.F}, Lifetime::pass);
}

// The loss before it is rounded, and the results. Returns the most of them that is live at once.
int64_t add_results(Builder& b, const LinearCrossEntropyProblem& p, const CrossEntropyArgs& args) {
  const Shape rows = {p.N};
  const DType wide = arithmetic_dtype(p.dtype), dtype = args.loss_dtype.value_or(p.dtype);
  const bool none = args.reduction == Reduction::none;
  const int64_t before = b.bytes;
  b.add(!none && dtype != DType::f64, "loss sum", DType::f64, {}, Lifetime::pass);
  const int64_t sum = b.bytes - before;
  b.add(true, "loss", dtype, none ? rows : Shape(), Lifetime::result);
  const int64_t rounding = b.bytes - before;
  b.add(p.stats, "lse", wide, rows, Lifetime::result);
  b.add(p.stats, "entropy", wide, rows, Lifetime::result);
  b.add(p.stats && !p.probabilities, "target log-probability", wide, rows, Lifetime::result);
  b.add(p.stats && !p.probabilities, "correct", DType::i64, rows, Lifetime::result);
  return std::max(rounding, b.bytes - before - sum);
}

PathPlan plan_reference(const LinearCrossEntropyProblem& p, const CrossEntropyArgs& args) {
  const Lifetime kept = p.any_grad() ? Lifetime::until_backward : Lifetime::pass;
  PathPlan plan;
  Builder f{plan.forward};
  f.add(true, "logits", p.dtype, {p.N, p.C}, kept);
  add_targets(f, p.N, false, p.probabilities, kept);
  add_outputs(f, p.N, p.probabilities, p.stats);
  add_scales(f, p.N, args.z_loss > 0);
  const int64_t before = f.bytes;
  plan.forward.peak_bytes = before + add_results(f, p, args);

  if (!p.any_grad()) return plan;
  Builder g{plan.backward};
  add_upstream_scales(g, p.N, false, p, args);
  g.add(true, "logits gradient", p.dtype, {p.N, p.C}, Lifetime::pass);
  g.add(p.input_grad, "input gradient", p.dtype, {p.N, p.F}, Lifetime::result);
  g.add(p.weight_grad, "weight gradient", p.dtype, {p.C, p.F}, Lifetime::result);
  g.add(p.bias && p.bias_grad, "bias gradient", p.dtype, {p.C}, Lifetime::result);
  // What forward kept is freed once the logits' gradient is there, before the products.
  const int64_t logits = bytes_of({p.N, p.C}, p.dtype);
  plan.backward.peak_bytes =
      plan.forward.bytes(Lifetime::result) +
      std::max(plan.forward.bytes(Lifetime::until_backward) + plan.backward.bytes(Lifetime::pass),
               logits + plan.backward.bytes(Lifetime::result));
  return plan;
}

}  // namespace

PathPlan plan_chunked(const LinearCrossEntropyProblem& p, const CrossEntropyArgs& args,
                      const ResolvedLinearCrossEntropyOptions& options) {
  const int64_t n = p.N - p.ignored_rows;
  const bool recompute = options.recompute || args.reduction == Reduction::none;
  PathPlan plan;
  Builder f{plan.forward};
  add_targets(f, p.N, p.picks_rows(), p.probabilities,
              p.any_grad() && recompute ? Lifetime::until_backward : Lifetime::pass);
  // Where counted_rows is taken for true, the ids behind it are looked at in a copy.
  const int64_t checked = f.bytes + (counts_rows(p.device) ? 0 : p.ignored_rows * size_of(DType::i64));
  add_outputs(f, n, p.probabilities, p.stats);
  const int64_t rows = f.bytes, kept_rows = plan.forward.bytes(Lifetime::until_backward);
  add_scales(f, n, args.z_loss > 0);
  add_chunk_loop(f, p, args, options, n, p.any_grad() && !recompute, Lifetime::until_backward);
  const int64_t kept = plan.forward.bytes(Lifetime::until_backward),
                loop = f.bytes - rows - (kept - kept_rows);
  // What the loop used is free again when the results are made.
  plan.forward.peak_bytes =
      std::max(checked, rows + (kept - kept_rows) + std::max(loop, add_results(f, p, args)));

  if (!p.any_grad()) return plan;
  Builder g{plan.backward};
  if (recompute) {
    add_upstream_scales(g, n, p.picks_rows(), p, args);
    add_chunk_loop(g, p, args, options, n, true, Lifetime::result);
  } else if (options.allow_retain_graph) {
    g.add(p.input_grad, "input gradient", p.dtype, {p.N, p.F}, Lifetime::result);
    g.add(p.weight_grad, "weight gradient", p.dtype, {p.C, p.F}, Lifetime::result);
    g.add(p.bias && p.bias_grad, "bias gradient", p.dtype, {p.C}, Lifetime::result);
  }
  plan.backward.peak_bytes = kept + plan.forward.bytes(Lifetime::result) + g.bytes;
  return plan;
}

int64_t transient_bytes(const ResolvedLinearCrossEntropyOptions& options, int64_t N, int64_t F, int64_t C,
                        DType T, Device device, bool probabilities) {
  // One row more, which is ignored, so that all N are picked out of the others.
  const LinearCrossEntropyProblem problem = {.N = N + 1,
                                             .F = F,
                                             .C = C,
                                             .dtype = T,
                                             .device = device,
                                             .probabilities = probabilities,
                                             .bias = true,
                                             .stats = true,
                                             .ignored_rows = 1};
  CrossEntropyArgs args;
  args.label_smoothing = 0.5;
  args.z_loss = 1;
  args.loss_dtype = DType::f32;
  int64_t most = 0;
  for (const Reduction reduction : {Reduction::mean, Reduction::none}) {
    args.reduction = reduction;
    const PathPlan plan = plan_chunked(problem, args, options);
    // What forward keeps are the gradients, or where backward makes the pass, the targets.
    const bool recompute = options.recompute || reduction == Reduction::none;
    const int64_t kept = recompute ? plan.forward.bytes(Lifetime::until_backward) : 0;
    for (const PassPlan* pass : {&plan.forward, &plan.backward})
      most = std::max(most, kept + pass->bytes(Lifetime::chunk) + pass->bytes(Lifetime::pass));
  }
  return most;
}

LinearCrossEntropyPlan plan_linear_cross_entropy(const LinearCrossEntropyProblem& p,
                                                 const LinearCrossEntropyArgs& args) {
  check<ValueError>(p.ignored_rows >= 0 && p.ignored_rows <= p.N,
                    "[plan_linear_cross_entropy] {} ignored rows of {}", p.ignored_rows, p.N);
  LinearCrossEntropyPlan plan;
  plan.options = args.options.value_or(LinearCrossEntropyOptions())
                     .resolve(p.N, p.F, p.C, p.dtype, p.device, p.probabilities);
  const int64_t n = p.N - p.ignored_rows, B = plan.options.batch_chunk_size;
  plan.chunks = n / B + (n % B != 0);
  plan.chunked = plan_chunked(p, args, plan.options);
  plan.reference = plan_reference(p, args);
  plan.chunking_pays = p.N >= p.F && p.C > p.F;
  return plan;
}

}  // namespace tapehead
