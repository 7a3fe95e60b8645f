// The gradient filter: which probabilities it keeps, that it is without bias, and that sparse products,
// chunks, threads and the op's other arguments change nothing about that.
#include <omp.h>

#include <cmath>
#include <limits>
#include <map>

#include "tapehead/backends/backend.h"
#include "tapehead/backends/tuning.h"
#include "tapehead/core/view.h"
#include "tapehead/ops/linear_cross_entropy_plan.h"
#include "tapehead/ops/matmul.h"
#include "tapehead/tests/ops/head_problem.h"
#include "tapehead/tests/ops/instruction_sets.h"

namespace tapehead {
namespace {

using Problem = HeadProblem;

LinearCrossEntropyArgs filtered(const std::string& filter, Generator& numbers, int64_t rows = 4) {
  LinearCrossEntropyArgs args;
  args.options = LinearCrossEntropyOptions({.batch_chunk_size = rows, .gradient_filter = filter});
  args.filter_numbers = &numbers;
  args.filter_stats = std::make_shared<GradientFilterStats>();
  return args;
}

// ---- The definition, element by element in double

// The number that decides on class c of row r.
double number(uint64_t seed, uint64_t first, int64_t r, int64_t c, int64_t C) {
  const uint64_t block = first + static_cast<uint64_t>(r * ((C + 15) / 16) + c / 16);
  const uint32_t word = philox(seed, block)[static_cast<size_t>(c % 16 / 4)];
  const double byte = word >> (8 * (c % 4)) & 0xFF;
  const uint64_t refined = (uint64_t{1} << 63) + 16 * block + static_cast<uint64_t>(c % 16);
  return (byte + static_cast<double>(to_uniform(philox(seed, refined)[0]))) / 256;
}

double keep(const GradientFilter& filter, double p, double u) {
  if (p >= filter.level) return p;
  if (filter.kind == GradientFilter::threshold) return 0;
  return u < p / filter.level ? filter.level : 0;
}

// The gradient of sum's row losses with respect to the logits, for filtered p; and what stays of p in `kept`.
Tensor logits_gradient(const Problem& p, const LinearCrossEntropyArgs& args, const GradientFilter& filter,
                       uint64_t seed, uint64_t first, int64_t* kept = nullptr) {
  const int64_t N = p.input.size(0), C = p.weight.size(0);
  const Tensor products = linear(p.input, p.weight, args.bias);
  const std::vector<double> x = products.to_vector<double>();
  const std::vector<int64_t> target = p.target.to_vector<int64_t>();
  const auto weights = [](const Tensor& w, int64_t n) {
    return w.defined() ? w.to_vector<double>() : std::vector<double>(static_cast<size_t>(n), 1.0);
  };
  const std::vector<double> of_class = weights(args.class_weight, C), of_row = weights(args.token_weight, N);
  std::vector<double> gradient(x.size());
  const double e = args.label_smoothing;
  for (int64_t r = 0; r < N; ++r) {
    const int64_t t = target[static_cast<size_t>(r)];
    if (t < 0) continue;
    std::vector<double> z(static_cast<size_t>(C)), slope(z.size(), args.logit_scale);
    double sum = 0, factors = 0;
    for (size_t c = 0; c < z.size(); ++c) {
      z[c] = args.logit_scale * x[static_cast<size_t>(r * C) + c];
      if (args.softcap) {
        const double tanh = std::tanh(z[c] / *args.softcap);
        z[c] = *args.softcap * tanh;
        slope[c] *= 1 - tanh * tanh;
      }
      sum += std::exp(z[c]);
      factors += of_class[c] * e / static_cast<double>(C);
    }
    const double b = (1 - e) * of_class[static_cast<size_t>(t)], lse = std::log(sum);
    for (size_t c = 0; c < z.size(); ++c) {
      const bool own = static_cast<int64_t>(c) == t;
      double q = std::exp(z[c] - lse);
      if (!own) q = keep(filter, q, number(seed, first, r, static_cast<int64_t>(c), C));
      if (kept && q > 0) ++*kept;
      const double loss = (factors + b) * q - of_class[c] * e / static_cast<double>(C) - (own ? b : 0);
      gradient[static_cast<size_t>(r * C) + c] =
          slope[c] * of_row[static_cast<size_t>(r)] * (loss + 2 * args.z_loss * lse * q);
    }
  }
  return Tensor::from<double>({N, C}, gradient);
}

void expect_gradients(Problem& p, const Tensor& of_logits, double scale, double tolerance,
                      const std::string& what) {
  const NoGradGuard no_grad;
  const int64_t N = p.input.size(0), C = p.weight.size(0);
  Tensor gx(p.input.shape(), DType::f64), gw(p.weight.shape(), DType::f64);
  const Tensor t = of_logits.alias({C, N}, {1, C}, 0);
  backend(gx).matmul(scale, of_logits, p.weight, 0, gx);
  backend(gw).matmul(scale, t, p.input, 0, gw);
  Tensor gb = Tensor::zeros({C}, DType::f64);
  backend(gb).accumulate(of_logits, scale, gb);
  expect_close(p.input.grad(), gx, tolerance, tolerance, what + ": input");
  expect_close(p.weight.grad(), gw, tolerance, tolerance, what + ": weight");
  expect_close(p.bias.grad(), gb, tolerance, tolerance, what + ": bias");
}

// ---- The op against it

TEST(GradientFilter, EveryCombinationOfArgumentsAgreesWithItsDefinition) {
  for_each_instruction_set([] {
    int sparse = 0, dense = 0;
    for (const std::string text : {"stochastic:0.15", "threshold:0.02"}) {
      for (int mask = 0; mask < 128; ++mask) {
        Problem p(9, 5, 407);
        p.mask({0, 5});
        Generator numbers{.seed = 11, .next = 5};
        LinearCrossEntropyArgs args = filtered(text, numbers);
        args.reduction = Reduction::sum;
        args.bias = p.bias;
        p.set_arguments(mask, args);
        const bool recompute = mask & 64;
        args.options = LinearCrossEntropyOptions(
            {.batch_chunk_size = 4, .recompute = recompute, .gradient_filter = text});
        const std::string what = fmt::format("{}, arguments {:07b}", text, mask);
        p.clear();
        const Tensor loss = p.loss(args);
        backward(loss, Tensor::scalar(1.3, DType::f64));
        const Tensor expected = logits_gradient(p, args, parse_gradient_filter(text), 11, 5);
        expect_gradients(p, expected, 1.3, 1e-11, what);
        (args.filter_stats->sparse_chunks > 0 ? sparse : dense) += 1;
        if (HasFailure()) return;
      }
    }
    EXPECT_EQ(dense, 64);  // smoothing under a softcap
    EXPECT_EQ(sparse, 192);
  });
}

TEST(GradientFilter, LeavesTheLossExact) {
  Problem p(9, 5, 407);
  Generator numbers{.seed = 1};
  const Tensor exact = p.loss(chunked(4)), with_filter = p.loss(filtered("stochastic", numbers));
  EXPECT_EQ(exact.item(), with_filter.item());
}

TEST(GradientFilter, NoneReductionDrawsInBackwardWhatForwardReserved) {
  Problem p(9, 5, 407);
  Generator numbers{.seed = 3};
  LinearCrossEntropyArgs args = filtered("stochastic:0.15", numbers);
  args.reduction = Reduction::none;
  args.bias = p.bias;
  const Tensor loss = p.loss(args);
  EXPECT_EQ(numbers.next, static_cast<uint64_t>(9 * 26));
  EXPECT_EQ(args.filter_stats->rows, 0);  // not yet
  numbers.take(1000);                     // somebody else
  backward(loss, Tensor::full({9}, 1, DType::f64));
  EXPECT_EQ(args.filter_stats->rows, 9);
  expect_gradients(p, logits_gradient(p, args, parse_gradient_filter("stochastic:0.15"), 3, 0), 1, 1e-11,
                   "none");
}

TEST(GradientFilter, ChunksAndThreadsDoNotChangeTheChoice) {
  Problem p(23, 6, 500);
  p.mask({3, 4, 17});
  std::map<std::string, Tensor> first;
  const int before = omp_get_max_threads();
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    for (const int64_t rows : {1, 4, 7, 23}) {
      Generator numbers{.seed = 8};
      p.clear();
      backward(p.loss(filtered("stochastic:0.1", numbers, rows)));
      if (first.empty()) first = {{"input", p.input.grad()}, {"weight", p.weight.grad()}};
      expect_close(p.input.grad(), first["input"], 1e-12, 1e-14, "input");
      expect_close(p.weight.grad(), first["weight"], 1e-12, 1e-14, "weight");
    }
  }
  omp_set_num_threads(before);
}

TEST(GradientFilter, OfAllIsTheDenseGradient) {
  // Nothing is below the level: dense products. With logits so far apart that few p are not 0: sparse ones.
  for (const double scale : {1.0, 30.0}) {
    Problem p(16, 12, 300, 1, DType::f64, scale);
    Generator numbers{.seed = 8};
    LinearCrossEntropyArgs args = filtered("stochastic:1e-300", numbers);
    expect_same(p, args, chunked(4), Tensor::scalar(1, DType::f64), 1e-11, fmt::format("scale {}", scale));
    EXPECT_EQ(args.filter_stats->sparse_chunks, scale == 1 ? 0 : 4);
    EXPECT_EQ(args.filter_stats->dense_chunks, scale == 1 ? 4 : 0);
  }
}

// Means over draws agree with the exact gradient, and rows vary no more than the bound says.
TEST(GradientFilter, StochasticIsUnbiasedWithinItsVariance) {
  constexpr int kDraws = 4000;
  constexpr double kLevel = 0.02;
  constexpr int64_t N = 6, C = 200;
  // Logits that are the input itself: then the input's gradient is the logits'.
  std::vector<double> identity(static_cast<size_t>(C * C), 0.0);
  for (int64_t c = 0; c < C; ++c) identity[static_cast<size_t>(c * C + c)] = 1;
  const Tensor weight = Tensor::from<double>({C, C}, identity);
  Tensor input = random_tensor({N, C}, 5, 4);
  const Tensor target = random_indices({N}, C, 6);
  input.set_requires_grad();
  LinearCrossEntropyArgs exact = chunked(2, Reduction::sum);
  backward(linear_cross_entropy(input, weight, target, exact));
  const std::vector<double> truth = input.grad().to_vector<double>();

  std::vector<double> mean(truth.size()), square(truth.size());
  Generator numbers{.seed = 77};
  for (int i = 0; i < kDraws; ++i) {
    input.set_grad({});
    LinearCrossEntropyArgs args = filtered(fmt::format("stochastic:{}", kLevel), numbers, 2);
    args.reduction = Reduction::sum;
    backward(linear_cross_entropy(input, weight, target, args));
    const std::vector<double> g = input.grad().to_vector<double>();
    for (size_t k = 0; k < g.size(); ++k) {
      mean[k] += g[k] / kDraws;
      square[k] += (g[k] - truth[k]) * (g[k] - truth[k]) / kDraws;
    }
  }
  const std::vector<int64_t> t = target.to_vector<int64_t>();
  for (int64_t r = 0; r < N; ++r) {
    double variance = 0, tail = 0, exact_variance = 0;
    for (int64_t c = 0; c < C; ++c) {
      const size_t k = static_cast<size_t>(r * C + c);
      if (c == t[static_cast<size_t>(r)] || truth[k] >= kLevel) {  // kept as they are
        EXPECT_NEAR(mean[k], truth[k], 1e-12);
        EXPECT_LT(square[k], 1e-24);
        continue;
      }
      // One entry is 0 or the level: its variance is p · (level - p).
      const double expected = truth[k] * (kLevel - truth[k]);
      EXPECT_NEAR(mean[k], truth[k], 5 * std::sqrt(expected / kDraws) + 1e-9) << r << " " << c;
      variance += square[k];
      exact_variance += expected;
      tail += truth[k];
    }
    EXPECT_GT(tail, 0.1);
    EXPECT_LT(variance, kLevel * tail);
    EXPECT_NEAR(variance, exact_variance, 0.05 * exact_variance);  // a sample's
  }
}

TEST(GradientFilter, TellsWhatItLeftAndDropped) {
  Problem p(12, 5, 800);
  p.mask({2});
  Generator numbers{.seed = 4};
  LinearCrossEntropyArgs args = filtered("threshold:0.01", numbers, 5);
  args.reduction = Reduction::sum;
  args.bias = p.bias;
  int64_t kept = 0;
  logits_gradient(p, args, parse_gradient_filter("threshold:0.01"), 0, 0, &kept);
  backward(p.loss(args));
  const GradientFilterStats& stats = *args.filter_stats;
  EXPECT_EQ(stats.rows, 11);
  EXPECT_EQ(stats.sparse_rows,
            test_device().kind == Device::cpu ? 11 : 12);  // elsewhere nobody waits to count
  EXPECT_EQ(stats.sparse_chunks, 3);
  EXPECT_EQ(stats.dense_chunks, 0);
  EXPECT_EQ(stats.entries, kept);
  EXPECT_EQ(numbers.next, 0u);  // nothing is drawn

  double dropped = 0;
  const std::vector<double> x = linear(p.input, p.weight, p.bias).to_vector<double>();
  const std::vector<int64_t> t = p.target.to_vector<int64_t>();
  for (size_t r = 0; r < t.size(); ++r) {
    if (t[r] < 0) continue;
    double sum = 0;
    for (size_t c = 0; c < 800; ++c) sum += std::exp(x[r * 800 + c]);
    for (size_t c = 0; c < 800; ++c) {
      const double q = std::exp(x[r * 800 + c]) / sum;
      if (static_cast<int64_t>(c) != t[r] && q < 0.01) dropped += q;
    }
  }
  EXPECT_NEAR(stats.filtered_mass, dropped, 1e-12);
}

// Hazard: once a chunk is left dense, what earlier ones kept must still reach the weight.
TEST(GradientFilter, SparseChunksBeforeADenseOneAreNotLost) {
  Problem p(8, 4, 300);
  std::vector<double> x = p.input.to_vector<double>();
  for (size_t i = 0; i < x.size(); ++i) x[i] *= i < x.size() / 2 ? 60 : 0.01;  // peaked rows, then flat ones
  p.input = Tensor::from<double>(p.input.shape(), x).set_requires_grad();
  Generator numbers{.seed = 4};
  LinearCrossEntropyArgs args = filtered("threshold:0.001", numbers, 2);
  args.reduction = Reduction::sum;
  args.bias = p.bias;
  backward(p.loss(args));
  EXPECT_EQ(args.filter_stats->sparse_chunks, 2);
  EXPECT_EQ(args.filter_stats->dense_chunks, 2);
  expect_gradients(p, logits_gradient(p, args, parse_gradient_filter("threshold:0.001"), 0, 0), 1, 1e-11,
                   "mixed");
}

TEST(GradientFilter, NaNRowsStayNaN) {
  Problem p(4, 4, 300);
  set_element(p.input, 5, std::nan(""));
  Generator numbers{.seed = 4};
  backward(p.loss(filtered("stochastic", numbers)));
  const std::vector<double> g = p.input.grad().to_vector<double>();
  for (size_t i = 0; i < g.size(); ++i) EXPECT_EQ(std::isnan(g[i]), i / 4 == 1) << i;
}

TEST(GradientFilter, OtherDtypesFollow) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const char* policy : {"auto", "accurate", "balanced", "compact"}) {
      // So many that sparse products pay on every device (backends/tuning.h).
      const int64_t C = 50 * tuning(test_device(), dtype).classes_per_entry;
      Problem p(24, 16, C, 1, dtype);
      Problem wide(24, 16, C);
      for (auto [to, from] : {std::pair(&wide.input, p.input), std::pair(&wide.weight, p.weight),
                              std::pair(&wide.bias, p.bias)}) {
        *to = from.detach().to(DType::f64).set_requires_grad();
      }
      const auto gradients = [&](Problem& of) {
        Generator numbers{.seed = 21};
        LinearCrossEntropyArgs args = filtered("stochastic:0.05", numbers, 8);
        args.label_smoothing = 0.1;
        LinearCrossEntropyOptions::Fields fields = args.options->fields();
        fields.acc_policy = policy;
        args.options = LinearCrossEntropyOptions(fields);
        backward(of.loss(args));
        EXPECT_EQ(args.filter_stats->sparse_chunks, 3);
      };
      gradients(p);
      gradients(wide);
      const double tolerance = dtype == DType::f32 ? 2e-5 : dtype == DType::f16 ? 4e-3 : 3e-2;
      const std::string what = fmt::format("{} {}", dtype, policy);
      const auto norm = [](const Tensor& x) {
        Tensor square({}, DType::f64);
        backend(x).squared_norm(std::span(&x, 1), square);
        return std::sqrt(square.item());
      };
      for (auto [got, expected] :
           {std::pair(p.input.grad(), wide.input.grad()), std::pair(p.weight.grad(), wide.weight.grad()),
            std::pair(p.bias.grad(), wide.bias.grad())}) {
        const NoGradGuard no_grad;
        Tensor difference = got.to(DType::f64).clone();
        backend(difference).accumulate(expected, -1, difference);
        EXPECT_LT(norm(difference), tolerance * norm(expected)) << what;
      }
    }
  }
}

// Hazard: a class that is masked with -inf has no slope to multiply by, and a target's 0 stays 0.
TEST(GradientFilter, MaskedTargetsAgreeWithTheDefinition) {
  for (const double weight_of_target : {1.0, 0.0}) {
    Problem p(4, 3, 300);
    const int64_t masked = p.target.to_vector<int64_t>()[1];
    set_element(p.bias, masked, -std::numeric_limits<double>::infinity());
    set_element(p.class_weight, masked, weight_of_target);
    Generator numbers{.seed = 4};
    LinearCrossEntropyArgs args = filtered("threshold:0.01", numbers);
    args.reduction = Reduction::sum;
    args.bias = p.bias;
    args.class_weight = p.class_weight;
    backward(p.loss(args));
    EXPECT_EQ(args.filter_stats->sparse_chunks, 1);
    expect_gradients(p, logits_gradient(p, args, parse_gradient_filter("threshold:0.01"), 0, 0), 1, 1e-11,
                     fmt::format("weight {}", weight_of_target));
  }
}

TEST(GradientFilter, NothingCountsAndFewClassesAreFine) {
  Generator numbers{.seed = 4};
  Problem p(3, 4, 300);
  p.mask({0, 1, 2});
  LinearCrossEntropyArgs args = filtered("stochastic:0.05", numbers);
  args.reduction = Reduction::sum;
  args.filter_stats->rows = 77;  // of an earlier call
  backward(p.loss(args));
  EXPECT_EQ(args.filter_stats->rows, 0);
  for (double g : p.input.grad().to_vector<double>()) EXPECT_EQ(g, 0);
  for (const int64_t C : {1, 2, 7, 8}) {
    Problem few(5, 4, C);
    args.bias = few.bias;
    numbers = {.seed = 11};
    backward(few.loss(args));
    expect_gradients(few, logits_gradient(few, args, parse_gradient_filter("stochastic:0.05"), 11, 0), 1,
                     1e-11, fmt::format("{} classes", C));
  }
}

TEST(GradientFilter, OneGradientAloneAndWeightsByColumnsToo) {
  for (int wanted = 1; wanted < 8; ++wanted) {
    for (const bool by_columns : {false, true}) {
      Problem p(9, 5, 407);
      if (by_columns) p.weight = transpose(transpose(p.weight.detach(), 0, 1).contiguous(), 0, 1).detach();
      p.input.set_requires_grad(wanted & 1);
      p.weight.set_requires_grad(wanted & 2);
      p.bias.set_requires_grad(wanted & 4);
      Generator numbers{.seed = 11};
      LinearCrossEntropyArgs args = filtered("stochastic:0.1", numbers);
      args.reduction = Reduction::sum;
      args.bias = p.bias;
      backward(p.loss(args));
      EXPECT_EQ(args.filter_stats->sparse_chunks, by_columns ? 0 : 3);
      Problem all(9, 5, 407);
      backward(all.loss([&] {
        numbers = {.seed = 11};
        LinearCrossEntropyArgs same = args;
        same.bias = all.bias;
        return same;
      }()));
      for (const auto& [one, whole] :
           {std::pair(p.input, all.input), std::pair(p.weight, all.weight), std::pair(p.bias, all.bias)}) {
        EXPECT_EQ(one.grad().defined(), one.requires_grad());
        if (one.requires_grad()) expect_close(one.grad(), whole.grad(), 1e-11, 1e-13, "alone");
      }
    }
  }
}

// ---- The option

TEST(GradientFilter, IsReadFromText) {
  const auto both = [](const char* text) { return name(parse_gradient_filter(text)); };
  EXPECT_EQ(both("none"), "none");
  EXPECT_EQ(both("stochastic"), "stochastic:0.0078125");
  EXPECT_EQ(both("threshold"), "threshold:0.000244140625");
  EXPECT_EQ(both("stochastic:0.03"), "stochastic:0.03");
  for (const char* wrong : {"", "Stochastic", "stochastic:", "stochastic:0", "stochastic:1", "threshold:-1",
                            "threshold:0.1x", "threshold:nan", "none:1"}) {
    expect_error<ValueError>([&] { LinearCrossEntropyOptions({.gradient_filter = wrong}); },
                             fmt::format("gradient_filter \"{}\" is not one of none, stochastic", wrong));
  }
}

TEST(GradientFilter, StochasticNeedsNumbers) {
  Problem p(4, 3, 40);
  LinearCrossEntropyArgs args;
  args.options = LinearCrossEntropyOptions({.gradient_filter = "stochastic"});
  expect_error<ValueError>([&] { p.loss(args); }, "filter_numbers says from where");
  const NoGradGuard no_grad;
  EXPECT_GT(p.loss(args).item(), 0);  // nothing to draw
}

}  // namespace
}  // namespace tapehead
