#include "tapehead/ops/linear_cross_entropy_plan.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tapehead/core/memory.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

using Options = LinearCrossEntropyOptions;

struct Case {
  LinearCrossEntropyProblem problem;
  LinearCrossEntropyArgs args;

  std::string describe() const {
    const auto& p = problem;
    std::string text = fmt::format(
        "N={} F={} C={} {} probabilities={} bias={} grads={}{}{} ignored={} {} z_loss={} stats={}", p.N, p.F,
        p.C, p.dtype, p.probabilities, p.bias, p.input_grad, p.weight_grad, p.bias_grad, p.ignored_rows,
        name(args.reduction), args.z_loss, args.stats != nullptr);
    if (!args.options) return text + " reference";
    const auto& f = args.options->fields();
    return text + fmt::format(" rows={} policy={} acc={} retain={} recompute={} filter={}",
                              f.batch_chunk_size.value_or(0), f.acc_policy,
                              f.acc_dtype ? name(*f.acc_dtype) : "-", f.allow_retain_graph, f.recompute,
                              f.gradient_filter);
  }
};

// Runs the call and holds what the allocator counted against the plan.
void expect_exact(const Case& c, int& compared) {
  SCOPED_TRACE(c.describe());
  const LinearCrossEntropyProblem& p = c.problem;
  const Device device = test_device();
  Tensor input = random_tensor({p.N, p.F}, 1, 1, p.dtype), weight = random_tensor({p.C, p.F}, 2, 1, p.dtype);
  Tensor target = p.probabilities ? random_tensor({p.N, p.C}, 3, 1, p.dtype)
                                  : random_indices({p.N}, static_cast<uint64_t>(p.C), 4);
  LinearCrossEntropyArgs args = c.args;
  if (p.bias) args.bias = random_tensor({p.C}, 5, 1, p.dtype);
  args.counted_rows = p.N - p.ignored_rows;
  if (p.ignored_rows > 0) {
    if (p.probabilities) {
      args.token_weight = Tensor::full({p.N}, 1);
      Tensor(args.token_weight.alias({p.ignored_rows}, {1}, 0)).fill(0);
    } else {
      Tensor(target.alias({p.ignored_rows}, {1}, p.N - p.ignored_rows)).fill(-100);
    }
  }
  input.set_requires_grad(p.input_grad);
  weight.set_requires_grad(p.weight_grad);
  if (p.bias) args.bias.set_requires_grad(p.bias_grad);
  const bool none = args.reduction == Reduction::none;
  const Tensor upstream = Tensor::full(none ? Shape{p.N} : Shape(), 0.5, args.loss_dtype.value_or(p.dtype));

  const LinearCrossEntropyPlan plan = plan_linear_cross_entropy(p, args);
  const PathPlan& path = args.options ? plan.chunked : plan.reference;
  const int64_t before = memory_stats(device).live_bytes;
  const auto peak = [&] { return memory_stats(device).peak_bytes - before; };
  CrossEntropyStats stats;
  if (args.stats) args.stats = &stats;
  Generator numbers;
  args.filter_numbers = &numbers;
  reset_peak(device);
  const Tensor loss = linear_cross_entropy(input, weight, target, args);
  EXPECT_EQ(peak(), path.forward.peak_bytes);
  EXPECT_EQ(memory_stats(device).live_bytes - before,
            path.forward.bytes(Lifetime::until_backward) + path.forward.bytes(Lifetime::result));
  if (p.any_grad()) {
    reset_peak(device);
    const int64_t allocations = memory_stats(device).allocations;
    backward(loss, upstream);
    EXPECT_EQ(peak(), path.backward.peak_bytes);
    if (path.backward.buffers.empty()) {
      EXPECT_EQ(memory_stats(device).allocations, allocations);
    }
  }
  ++compared;
}

TEST(LinearCrossEntropyPlan, EqualsTheAllocatorToTheByte) {
  Generator random{.seed = 7};
  const auto pick = [&](auto... values) {
    const std::common_type_t<decltype(values)...> list[] = {values...};
    return list[random.below(sizeof...(values))];
  };
  const auto pick64 = [&](auto... values) { return pick(static_cast<int64_t>(values)...); };
  CrossEntropyStats wanted;
  int compared = 0;
  for (int i = 0; i < 700; ++i) {
    Case c;
    LinearCrossEntropyProblem& p = c.problem;
    p.device = test_device();
    p.N = pick64(1, 5, 16, 37);
    p.F = pick64(1, 8, 24);
    p.C = pick64(1, 3, 50, 129, 1000);
    p.dtype = pick(DType::f64, DType::f32, DType::f16, DType::bf16);
    p.probabilities = random.below(4) == 0;
    p.bias = random.below(2) == 0;
    p.input_grad = random.below(4) != 0;
    p.weight_grad = random.below(4) != 0;
    p.bias_grad = p.bias && random.below(4) != 0;
    p.ignored_rows = pick64(0, 0, 1, p.N);
    c.args.reduction = pick(Reduction::mean, Reduction::sum, Reduction::none);
    c.args.z_loss = pick(0.0, 1e-3);
    if (random.below(3) == 0) c.args.loss_dtype = DType::f32;
    p.stats = random.below(3) == 0;
    if (p.stats) c.args.stats = &wanted;
    if (random.below(4) != 0) {
      Options::Fields f;
      f.batch_chunk_size = pick64(1, 4, 16, 100);
      f.acc_policy = pick("auto", "accurate", "balanced", "compact");
      if (random.below(2) == 0) f.acc_dtype = is_half(p.dtype) ? DType::f32 : p.dtype;
      f.allow_retain_graph = random.below(3) == 0;
      f.recompute = random.below(3) == 0;
      f.gradient_filter = pick("none", "none", "threshold:0.01", "stochastic:0.2");
      c.args.label_smoothing = pick(0.0, 0.1);
      c.args.options = Options(f);
    }
    expect_exact(c, compared);
    if (HasFailure()) break;
  }
  EXPECT_EQ(compared, 700);
}

TEST(LinearCrossEntropyPlan, NamesBuffersChunksAndAdvice) {
  LinearCrossEntropyArgs args;
  args.options = Options({.batch_chunk_size = 64});
  const LinearCrossEntropyPlan plan =
      plan_linear_cross_entropy({.N = 1000, .F = 256, .C = 8192, .ignored_rows = 100}, args);
  EXPECT_EQ(plan.chunks, 15) << "14 of 64 rows and one of 4";
  EXPECT_TRUE(plan.chunking_pays);
  const Tensor logits = plan.chunked.forward.allocate("logits", {});
  EXPECT_EQ(logits.shape(), Shape({64, 8192}));
  EXPECT_FALSE(plan.chunked.forward.allocate("no such buffer", {}).defined());
  EXPECT_FALSE(plan_linear_cross_entropy({.N = 10, .F = 256, .C = 100}, args).chunking_pays);
  EXPECT_LT(plan.chunked.forward.peak_bytes, plan.reference.forward.peak_bytes);
}

TEST(LinearCrossEntropyPlan, RowsThatChunksDivideLeaveNoOther) {
  LinearCrossEntropyArgs args;
  args.options = Options({.batch_chunk_size = 64});
  EXPECT_EQ(plan_linear_cross_entropy({.N = 128, .F = 1, .C = 1}, args).chunks, 2);
  EXPECT_EQ(plan_linear_cross_entropy({.N = 128, .F = 1, .C = 1, .ignored_rows = 128}, args).chunks, 0);
  // As a list of their rows these took 8 TB.
  args.options = Options({.batch_chunk_size = 1});
  EXPECT_EQ(plan_linear_cross_entropy({.N = int64_t{1} << 40, .F = 1, .C = 1}, args).chunks,
            int64_t{1} << 40);
}

// 3e9 · 3e9 elements fit an int64, their bytes do not; and where each buffer's do, their sum may not.
TEST(LinearCrossEntropyPlan, SizesWhoseBytesOverflowAreRefused) {
  const auto refuse = [](int64_t N, int64_t F, int64_t C, const std::string& part) {
    LinearCrossEntropyArgs args;
    args.options = Options({.batch_chunk_size = 1});
    expect_error<ValueError>([&] { plan_linear_cross_entropy({.N = N, .F = F, .C = C}, args); }, part);
  };
  refuse(3'000'000'000, 1, 3'000'000'000, "(3000000000, 3000000000) and dtype f32 has too many bytes");
  refuse(int64_t{1} << 30, 1, (int64_t{1} << 29) + 1, "logits of shape (1073741824, 536870913)");
  refuse(8, int64_t{1} << 29, int64_t{1} << 30, "weight gradient of shape (1073741824, 536870912)");
  refuse(std::numeric_limits<int64_t>::max(), 1, 1, "too many bytes");
}

// The cap of "auto" keeps the chunked peak under the reference path's, also where F >= C, but for a few
// numbers a row.
TEST(LinearCrossEntropyPlan, AutoNeverCostsMemory) {
  for (int64_t N : {8, 100, 1024}) {
    for (int64_t F : {4, 64, 1024}) {
      for (int64_t C : {4, 64, 1024, 50000}) {
        LinearCrossEntropyArgs args;
        args.options = Options();
        const LinearCrossEntropyPlan plan = plan_linear_cross_entropy({.N = N, .F = F, .C = C}, args);
        EXPECT_LE(plan.chunked.peak_bytes(), plan.reference.peak_bytes() + 24 * N)
            << N << " " << F << " " << C;
      }
    }
  }
}

// What a pass allocates beside arguments, results and gradients.
int64_t transient(const PathPlan& plan, bool recompute) {
  const int64_t kept = recompute ? plan.forward.bytes(Lifetime::until_backward) : 0;  // targets
  int64_t most = 0;
  for (const PassPlan& pass : {plan.forward, plan.backward})
    most = std::max(most, kept + pass.bytes(Lifetime::chunk) + pass.bytes(Lifetime::pass));
  return most;
}

// Whatever else a call asks for; and with twice the rows, one that asks for everything would not fit.
TEST(LinearCrossEntropyPlan, BudgetHoldsForEveryCallAndIsUsed) {
  constexpr int64_t N = 8192;
  Generator random{.seed = 3};
  const auto coin = [&] { return random.below(2) == 0; };
  CrossEntropyStats wanted;
  int fuller = 0;
  for (const Device device : {Device{Device::cpu}, Device{Device::cuda}}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      for (const char* policy : {"auto", "accurate", "compact"}) {
        for (const char* filter : {"none", "stochastic", "threshold:0.00001"}) {
          for (const int64_t megabytes : {4, 64, 1024}) {
            const int64_t budget = megabytes << 20;
            const std::string what =
                fmt::format("{} {} {} {} {} MiB", device, dtype, policy, filter, megabytes);
            LinearCrossEntropyProblem p = {
                .N = N, .F = 96, .C = 25600, .dtype = dtype, .device = device, .probabilities = coin()};
            Options::Fields fields = {.chunking_method = fmt::format("budget:{}", budget),
                                      .acc_policy = policy,
                                      .recompute = coin(),
                                      .gradient_filter = filter};
            LinearCrossEntropyArgs args;
            for (int call = 0; call < 8; ++call) {
              p.bias = coin();
              p.stats = coin();
              p.input_grad = coin();
              p.weight_grad = coin();
              p.ignored_rows = coin() ? 5 : 0;
              args.stats = p.stats ? &wanted : nullptr;
              args.label_smoothing = coin() ? 0.1 : 0;
              args.z_loss = coin() ? 1e-4 : 0;
              args.softcap = coin() ? std::optional(30.0) : std::nullopt;
              args.reduction = coin() ? Reduction::mean : Reduction::none;
              args.options = Options(fields);
              const LinearCrossEntropyPlan plan = plan_linear_cross_entropy(p, args);
              if (plan.options.batch_chunk_size == 1) continue;
              const bool recompute = fields.recompute || args.reduction == Reduction::none;
              EXPECT_LE(transient(plan.chunked, recompute), budget) << what;
            }
            auto doubled = Options(fields).resolve(N, p.F, p.C, dtype, device, p.probabilities);
            if (doubled.batch_chunk_size == N) continue;
            doubled.batch_chunk_size *= 2;
            p.bias = p.stats = p.input_grad = p.weight_grad = true;
            p.N = N + 1;
            p.ignored_rows = 1;
            args.label_smoothing = 0.1;
            args.z_loss = 1e-4;
            args.softcap.reset();
            args.loss_dtype = DType::f32;
            int64_t most = 0;
            for (const Reduction reduction : {Reduction::mean, Reduction::none}) {
              args.reduction = reduction;
              most = std::max(most, transient(plan_chunked(p, args, doubled),
                                              fields.recompute || reduction == Reduction::none));
            }
            EXPECT_GT(most, budget) << what;
            ++fuller;
          }
        }
      }
    }
  }
  EXPECT_GT(fuller, 100);
}

}  // namespace
}  // namespace tapehead
