// What holds for every call: tried on random sizes, dtypes, arguments and options.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tapehead/core/view.h"
#include "tapehead/tests/ops/head_problem.h"

namespace tapehead {
namespace {

constexpr int kCalls = 150;

// ---- A random call

struct Call {
  HeadProblem problem;
  LinearCrossEntropyArgs args;
  std::string text;  // for a failing test

  int64_t N() const { return problem.input.size(0); }
  int64_t C() const { return problem.weight.size(0); }
  bool probabilities() const { return problem.target.dim() == 2; }
};

template <class T>
T pick(Generator& random, std::initializer_list<T> choices) {
  return choices.begin()[random.below(choices.size())];
}

Call random_call(uint64_t seed, DType dtype = DType::f64) {
  Generator random{.seed = seed};
  const auto chance = [&](uint64_t of) { return random.below(of) == 0; };
  const int64_t N = pick<int64_t>(random, {1, 2, 7, 16, 33}), F = pick<int64_t>(random, {1, 3, 8, 20});
  const int64_t C = pick<int64_t>(random, {1, 2, 5, 17, 600});
  Call call{.problem = HeadProblem(N, F, C, seed, dtype), .args = {}, .text = {}};
  HeadProblem& p = call.problem;
  LinearCrossEntropyArgs& args = call.args;
  args.reduction = pick(random, {Reduction::mean, Reduction::sum, Reduction::none});
  if (chance(4)) {
    p.target = random_tensor({N, C}, seed + 9, 1, dtype);
  } else {
    std::vector<int64_t> masked;
    for (int64_t r = 1; r < N; ++r) {  // not all: a mean over nothing is NaN
      if (chance(3)) masked.push_back(r);
    }
    p.mask(masked);
  }
  if (chance(3)) args.label_smoothing = 0.2;
  if (chance(3)) args.softcap = 1.5;
  if (chance(3)) args.logit_scale = -0.7;
  if (chance(3)) args.z_loss = 0.05;
  if (chance(3)) args.class_weight = p.class_weight;
  if (chance(3)) args.token_weight = p.token_weight;
  LinearCrossEntropyOptions::Fields fields = {.batch_chunk_size = pick<int64_t>(random, {1, 2, 5, 16, 100}),
                                              .recompute = chance(4)};
  if (is_half(dtype)) {
    fields.acc_policy = pick(random, {"accurate", "balanced", "compact"});
    fields.acc_dtype = DType::f32;
  }
  args.options = LinearCrossEntropyOptions(fields);
  call.text = fmt::format(
      "seed {}: N={} F={} C={} {} {} probabilities={} smoothing={} softcap={} scale={} z_loss={} "
      "class_weight={} token_weight={} rows={} recompute={} {}",
      seed, N, F, C, dtype, name(args.reduction), call.probabilities(), args.label_smoothing,
      args.softcap.value_or(0), args.logit_scale, args.z_loss, args.class_weight.defined(),
      args.token_weight.defined(), *fields.batch_chunk_size, fields.recompute, fields.acc_policy);
  return call;
}

// ---- What it gives

struct Result {
  std::vector<double> loss, input, weight, bias;  // loss, and gradients

  bool operator==(const Result&) const = default;
};

Result run(HeadProblem& p, const LinearCrossEntropyArgs& args, const Tensor& upstream = {}) {
  p.clear();
  const Tensor loss = p.loss(args);
  backward(loss, upstream.defined() ? upstream : Tensor::full(loss.shape(), 1, loss.dtype()));
  return {loss.to_vector<double>(), p.input.grad().to_vector<double>(), p.weight.grad().to_vector<double>(),
          p.bias.grad().to_vector<double>()};
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double factor = 1) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], factor * b[i], 1e-11 * (1 + std::abs(factor * b[i]))) << i;
}

void expect_near(const Result& a, const Result& b, double factor = 1) {
  expect_near(a.loss, b.loss, factor);
  expect_near(a.input, b.input, factor);
  expect_near(a.weight, b.weight, factor);
  expect_near(a.bias, b.bias, factor);
}

void add(std::vector<double>& sum, const std::vector<double>& more) {
  sum.resize(more.size());
  for (size_t i = 0; i < more.size(); ++i) sum[i] += more[i];
}

// The result of more rows: their losses and shared gradients add up, their input gradients
// follow one another.
void append(const Result& more, Result& all) {
  add(all.loss, more.loss);
  add(all.weight, more.weight);
  add(all.bias, more.bias);
  all.input.insert(all.input.end(), more.input.begin(), more.input.end());
}

// These rows of a call, in this order.
Call rows_of(const Call& call, const std::vector<int64_t>& rows) {
  const auto gather = [&](const Tensor& x) {
    const NoGradGuard no_grad;
    const int64_t n = std::ssize(rows);
    if (!is_floating(x.dtype())) {
      const std::vector<int64_t> all = x.to_vector<int64_t>();
      std::vector<int64_t> chosen;
      for (int64_t r : rows) chosen.push_back(all[static_cast<size_t>(r)]);
      return Tensor::from<int64_t>({n}, chosen);
    }
    Tensor chosen(x.shape().with(0, n), x.dtype());
    for (int64_t i = 0; i < n; ++i) {
      Tensor to = select(chosen, 0, i);
      to.copy_from(select(x, 0, rows[static_cast<size_t>(i)]));
    }
    return chosen;
  };
  Call part = call;
  part.problem.input = gather(call.problem.input).set_requires_grad();
  part.problem.target = gather(call.problem.target);
  if (call.args.token_weight.defined()) part.args.token_weight = gather(call.args.token_weight);
  return part;
}

std::vector<int64_t> all_rows(const Call& call) {
  std::vector<int64_t> rows(static_cast<size_t>(call.N()));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

template <class Property>
void for_random_calls(Property&& property, std::initializer_list<DType> dtypes = {DType::f64}) {
  for (DType dtype : dtypes) {
    for (uint64_t seed = 1; seed <= kCalls; ++seed) {
      Call call = random_call(seed, dtype);
      SCOPED_TRACE(call.text);
      property(call);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// ---- The properties

TEST(LinearCrossEntropyProperty, ChunkSizeNeverChangesTheResult) {
  for_random_calls([](Call& call) {
    LinearCrossEntropyArgs whole = call.args;
    whole.options.reset();
    const Tensor upstream = call.args.reduction == Reduction::none ? random_tensor({call.N()}, 5) : Tensor();
    expect_near(run(call.problem, call.args, upstream), run(call.problem, whole, upstream));
  });
}

TEST(LinearCrossEntropyProperty, ReductionsAgree) {
  for_random_calls([](Call& call) {
    const auto reduced = [&](Reduction reduction, double normalizer = 0) {
      LinearCrossEntropyArgs args = call.args;
      args.reduction = reduction;
      if (normalizer > 0) args.normalizer = normalizer;
      return run(call.problem, args);
    };
    Result none = reduced(Reduction::none), sum = reduced(Reduction::sum);
    none.loss = {std::accumulate(none.loss.begin(), none.loss.end(), 0.0)};
    expect_near(none, sum);
    expect_near(reduced(Reduction::mean, 7), sum, 1 / 7.0);
    if (call.args.z_loss > 0) return;  // it has a denominator of its own

    const std::vector<double> token = call.args.token_weight.defined()
                                          ? call.args.token_weight.to_vector<double>()
                                          : std::vector<double>(static_cast<size_t>(call.N()), 1);
    double denominator = 0;
    for (size_t r = 0; r < token.size(); ++r) {
      if (call.probabilities()) {
        denominator += token[r];
      } else if (const int64_t t = call.problem.target.to_vector<int64_t>()[r]; t >= 0) {
        denominator += token[r] * (call.args.class_weight.defined()
                                       ? call.args.class_weight.to_vector<double>()[static_cast<size_t>(t)]
                                       : 1);
      }
    }
    expect_near(reduced(Reduction::mean), sum, 1 / denominator);
  });
}

TEST(LinearCrossEntropyProperty, SumOverRowsIsTheBatch) {
  for_random_calls([](Call& call) {
    call.args.reduction = Reduction::sum;
    const Result batch = run(call.problem, call.args);
    Result rows;
    for (int64_t r : all_rows(call)) {
      Call row = rows_of(call, {r});
      const Result one = run(row.problem, row.args);
      append(one, rows);
    }
    expect_near(rows, batch);
  });
}

TEST(LinearCrossEntropyProperty, PermutingRowsPermutes) {
  for_random_calls([](Call& call) {
    call.args.reduction = Reduction::none;
    std::vector<int64_t> order = all_rows(call);
    Generator random{.seed = 77};
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    Call permuted = rows_of(call, order);
    const Result straight = run(call.problem, call.args), result = run(permuted.problem, permuted.args);
    Result expected = straight;
    const size_t F = static_cast<size_t>(call.problem.input.size(1));
    for (size_t i = 0; i < order.size(); ++i) {
      const size_t from = static_cast<size_t>(order[i]);
      expected.loss[i] = straight.loss[from];
      std::copy_n(straight.input.begin() + static_cast<int64_t>(from * F), F,
                  expected.input.begin() + static_cast<int64_t>(i * F));
    }
    expect_near(result, expected);
  });
}

TEST(LinearCrossEntropyProperty, MaskedRowsEqualRemovedRowsBitForBit) {
  for_random_calls(
      [](Call& call) {
        if (call.probabilities()) return;
        std::vector<int64_t> kept;
        const std::vector<int64_t> target = call.problem.target.to_vector<int64_t>();
        for (int64_t r : all_rows(call)) {
          if (target[static_cast<size_t>(r)] >= 0) kept.push_back(r);
        }
        Call removed = rows_of(call, kept);
        call.args.counted_rows = std::ssize(kept);
        const Result masked = run(call.problem, call.args), rest = run(removed.problem, removed.args);
        Result expected = {.loss = rest.loss, .input = {}, .weight = rest.weight, .bias = rest.bias};
        const size_t F = static_cast<size_t>(call.problem.input.size(1));
        expected.input.resize(masked.input.size());
        if (call.args.reduction == Reduction::none) expected.loss.assign(target.size(), 0.0);
        for (size_t i = 0; i < kept.size(); ++i) {
          const size_t to = static_cast<size_t>(kept[i]);
          if (call.args.reduction == Reduction::none) expected.loss[to] = rest.loss[i];
          std::copy_n(rest.input.begin() + static_cast<int64_t>(i * F), F,
                      expected.input.begin() + static_cast<int64_t>(to * F));
        }
        EXPECT_EQ(masked, expected);
      },
      {DType::f64, DType::f32, DType::f16, DType::bf16});
}

TEST(LinearCrossEntropyProperty, NormalizerOverMicroBatchesIsTheFullBatch) {
  for_random_calls([](Call& call) {
    call.args.reduction = Reduction::mean;
    call.args.normalizer = 11.5;
    const Result batch = run(call.problem, call.args);
    const int64_t split = call.N() / 3;
    const std::vector<int64_t> rows = all_rows(call);
    Result sum;
    for (const auto& part :
         {std::vector(rows.begin(), rows.begin() + split), std::vector(rows.begin() + split, rows.end())}) {
      Call micro = rows_of(call, part);
      micro.args.zero_if_empty = true;
      const Result one = run(micro.problem, micro.args);
      append(one, sum);
    }
    expect_near(sum, batch);
  });
}

TEST(LinearCrossEntropyProperty, RunsAreBitIdenticalForANumberOfThreads) {
  for (int64_t threads : {2, 1, 3}) {
    if (threads != 2 && device_is_emulated()) continue;  // they are the host's
    set_cpu_threads(threads);
    for_random_calls(
        [](Call& call) { EXPECT_EQ(run(call.problem, call.args), run(call.problem, call.args)); },
        {DType::f64, DType::f32, DType::f16, DType::bf16});
    HeadProblem large(300, 70, 1100, 3, DType::f32);
    const Result first = run(large, chunked(64));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(run(large, chunked(64)), first);
  }
  set_cpu_threads(2);
}

}  // namespace
}  // namespace tapehead
