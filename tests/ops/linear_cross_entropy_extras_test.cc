// What goes past PyTorch: softcap, scale, z-loss, token weights, normalizer, loss_dtype, recompute,
// statistics; and 16-bit inputs under every policy. The oracle is the same loss composed from
// elementary ops, in f64.
#include <cmath>

#include "tapehead/core/gradcheck.h"
#include "tapehead/core/view.h"
#include "tapehead/ops/elementwise.h"
#include "tapehead/ops/matmul.h"
#include "tapehead/ops/reduce.h"
#include "tapehead/ops/softmax.h"
#include "tapehead/tests/ops/head_problem.h"

namespace tapehead {
namespace {

using Options = LinearCrossEntropyOptions;
using Problem = HeadProblem;

Tensor one_hot(const Tensor& target, int64_t C) {
  std::vector<double> q(static_cast<size_t>(target.numel() * C), 0.0);
  const std::vector<int64_t> t = target.to_vector<int64_t>();
  for (size_t r = 0; r < t.size(); ++r) {
    if (t[r] >= 0) q[r * static_cast<size_t>(C) + static_cast<size_t>(t[r])] = 1;
  }
  return Tensor::from<double>({target.numel(), C}, q);
}

// Row losses from their definition.
Tensor composed_rows(const Problem& p, const LinearCrossEntropyArgs& args, Tensor* z_rows) {
  const int64_t N = p.input.size(0), C = p.weight.size(0);
  Tensor z = linear(p.input, p.weight, args.bias) * args.logit_scale;
  if (args.softcap) z = tanh(z / *args.softcap) * *args.softcap;
  const Tensor log_p = log_softmax(z, 1);
  const Tensor hot = one_hot(p.target, C);
  Tensor live = sum(hot, {1}, false);  // 0 in ignored rows
  Tensor q = hot * (1 - args.label_smoothing) + args.label_smoothing / static_cast<double>(C);
  if (args.class_weight.defined()) q = q * args.class_weight;
  const Tensor weight = args.token_weight.defined() ? mul(live, args.token_weight) : live;
  *z_rows = mul(weight, mul(select(z - log_p, 1, 0), select(z - log_p, 1, 0))) * args.z_loss;
  return mul(weight, reshape(neg(sum(mul(q, log_p), {1}, false)), {N}));
}

Tensor composed(const Problem& p, const LinearCrossEntropyArgs& args) {
  Tensor z_rows;
  const Tensor rows = composed_rows(p, args, &z_rows);
  if (args.reduction == Reduction::none) return rows + z_rows;
  if (args.reduction == Reduction::sum) return sum(rows + z_rows);
  double total = 0, z_total = 0;
  const std::vector<int64_t> t = p.target.to_vector<int64_t>();
  for (size_t r = 0; r < t.size(); ++r) {
    if (t[r] < 0) continue;
    const double w = args.token_weight.defined() ? args.token_weight.to_vector<double>()[r] : 1;
    total +=
        w *
        (args.class_weight.defined() ? args.class_weight.to_vector<double>()[static_cast<size_t>(t[r])] : 1);
    z_total += w;
  }
  return sum(rows) / args.normalizer.value_or(total) + sum(z_rows) / args.normalizer.value_or(z_total);
}

// All arguments at once, each on or off, on both paths.
TEST(LinearCrossEntropyExtras, EveryCombinationAgreesWithItsDefinition) {
  for (int mask = 0; mask < 256; ++mask) {
    for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
      Problem p(7, 3, 5);
      std::vector<int64_t> t = p.target.to_vector<int64_t>();
      t[0] = t[4] = -100;
      p.target = Tensor::from<int64_t>({7}, t);
      LinearCrossEntropyArgs args;
      args.reduction = reduction;
      p.set_arguments(mask, args);
      if (mask & 64) args.bias = p.bias;
      if (mask & 128) args.normalizer = 11;
      const Tensor upstream =
          reduction == Reduction::none ? random_tensor({7}, 9) : Tensor::scalar(1.3, DType::f64);
      backward(composed(p, args), upstream);
      const Tensor expected = composed(p, args).detach(), gx = p.input.grad(), gw = p.weight.grad(),
                   gb = p.bias.grad();
      for (int path = 0; path < 3; ++path) {
        SCOPED_TRACE(fmt::format("arguments {:08b}, {}, {}", mask, name(reduction),
                                 path == 0   ? "reference"
                                 : path == 1 ? "chunked"
                                             : "recompute"));
        if (path > 0) args.options = Options({.batch_chunk_size = 2, .recompute = path == 2});
        p.clear();
        const Tensor loss = linear_cross_entropy(p.input, p.weight, p.target, args);
        backward(loss, upstream);
        expect_close(loss, expected, 1e-12, 1e-13, "loss");
        expect_close(p.input.grad(), gx, 1e-11, 1e-12, "input");
        expect_close(p.weight.grad(), gw, 1e-11, 1e-12, "weight");
        if (args.bias.defined()) expect_close(p.bias.grad(), gb, 1e-11, 1e-12, "bias");
        p.clear();
      }
    }
  }
}

TEST(LinearCrossEntropyExtras, TokenWeightOfZeroEqualsIgnored) {
  Problem p(6, 3, 5);
  LinearCrossEntropyArgs weighted, ignored;
  weighted.options = ignored.options = Options({.batch_chunk_size = 2});
  weighted.token_weight = Tensor::from<double>({6}, std::vector<double>{1, 0, 1, 1, 0, 1});
  const Tensor a = linear_cross_entropy(p.input, p.weight, p.target, weighted);
  backward(a);
  const std::vector<double> gw = p.weight.grad().to_vector<double>();
  p.clear();
  std::vector<int64_t> t = p.target.to_vector<int64_t>();
  t[1] = t[4] = -100;
  const Tensor b = linear_cross_entropy(p.input, p.weight, Tensor::from<int64_t>({6}, t), ignored);
  backward(b);
  EXPECT_EQ(a.item(), b.item());
  EXPECT_EQ(gw, p.weight.grad().to_vector<double>());
}

TEST(LinearCrossEntropyExtras, TokenWeightsOfProbabilitiesLeaveRowsOut) {
  Problem p(6, 3, 5);
  p.target = random_tensor({6, 5}, 8);
  LinearCrossEntropyArgs args;
  args.token_weight = Tensor::from<double>({6}, std::vector<double>{0, 2, 1, 0, 0.5, 1});
  args.label_smoothing = 0.1;
  const Tensor reference = linear_cross_entropy(p.input, p.weight, p.target, args);
  backward(reference);
  const Tensor gx = p.input.grad(), gw = p.weight.grad();
  p.clear();
  args.options = Options({.batch_chunk_size = 3});
  const Tensor loss = linear_cross_entropy(p.input, p.weight, p.target, args);
  backward(loss);
  expect_close(loss, reference.detach(), 1e-13, 0, "loss");
  expect_close(p.input.grad(), gx, 1e-12, 1e-13, "input");
  expect_close(p.weight.grad(), gw, 1e-12, 1e-13, "weight");
}

// Padding lanes must not enter the sum: tanh of their -inf would be -cap, not -inf.
TEST(LinearCrossEntropyExtras, SoftcapWithClassesNotAMultipleOfTheVectorWidth) {
  for (int64_t C = 1; C < 40; ++C) {
    Problem p(2, 2, C, 1, DType::f32);
    LinearCrossEntropyArgs args;
    args.softcap = 0.5;
    args.options = Options({.batch_chunk_size = 1});
    Problem q = p;
    q.input = p.input.to(DType::f64), q.weight = p.weight.to(DType::f64);
    LinearCrossEntropyArgs wide = args;
    wide.options.reset();
    EXPECT_NEAR(linear_cross_entropy(p.input, p.weight, p.target, args).item(), composed(q, wide).item(),
                1e-6)
        << C;
  }
}

TEST(LinearCrossEntropyExtras, NormalizerOverTwoMicroBatchesEqualsTheBatch) {
  Problem p(8, 3, 5);
  LinearCrossEntropyArgs args;
  args.options = Options({.batch_chunk_size = 2});
  backward(linear_cross_entropy(p.input, p.weight, p.target, args));
  const Tensor whole = p.weight.grad();
  p.clear();
  args.normalizer = 8;
  for (auto [begin, end] : {std::pair{0, 5}, std::pair{5, 8}}) {
    backward(
        linear_cross_entropy(slice(p.input, 0, begin, end), p.weight, slice(p.target, 0, begin, end), args));
  }
  expect_close(p.weight.grad(), whole, 1e-13, 1e-15, "weight");
}

TEST(LinearCrossEntropyExtras, ZeroIfEmpty) {
  Problem p(3, 2, 4);
  p.target = Tensor::full({3}, -100, DType::i64);
  for (bool chunked : {false, true}) {
    p.clear();
    LinearCrossEntropyArgs args;
    args.zero_if_empty = true;
    args.z_loss = 0.1;
    if (chunked) args.options = Options();
    const Tensor loss = linear_cross_entropy(p.input, p.weight, p.target, args);
    EXPECT_EQ(loss.item(), 0);
    backward(loss);
    for (double v : p.weight.grad().to_vector<double>()) EXPECT_EQ(v, 0);
  }
}

TEST(LinearCrossEntropyExtras, LossDtype) {
  Problem p(4, 3, 5, 1, DType::bf16);
  LinearCrossEntropyArgs args;
  args.options = Options();
  EXPECT_EQ(linear_cross_entropy(p.input, p.weight, p.target, args).dtype(), DType::bf16);
  args.loss_dtype = DType::f32;
  const Tensor loss = linear_cross_entropy(p.input, p.weight, p.target, args);
  EXPECT_EQ(loss.dtype(), DType::f32);
  backward(loss, Tensor::scalar(2));
  EXPECT_EQ(p.weight.grad().dtype(), DType::bf16);
}

TEST(LinearCrossEntropyExtras, Recompute) {
  Problem p(6, 3, 5);
  LinearCrossEntropyArgs args;
  args.options = Options({.batch_chunk_size = 4, .recompute = true});
  const Tensor loss = linear_cross_entropy(p.input, p.weight, p.target, args);
  backward(loss, {}, true);
  const std::vector<double> once = p.weight.grad().to_vector<double>();
  backward(loss, {}, true);  // any number of times
  const std::vector<double> twice = p.weight.grad().to_vector<double>();
  for (size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(twice[i], 2 * once[i], 1e-15);
}

// ---- Statistics

TEST(LinearCrossEntropyExtras, StatisticsAgreeWithTheirDefinitions) {
  for (bool chunked : {false, true}) {
    Problem p(9, 4, 700);
    std::vector<int64_t> t = p.target.to_vector<int64_t>();
    t[3] = -100;
    const Tensor z = linear(p.input, p.weight, p.bias).detach();
    const std::vector<double> logits = z.to_vector<double>();
    t[5] = std::max_element(logits.begin() + 5 * 700, logits.begin() + 6 * 700) - (logits.begin() + 5 * 700);
    p.target = Tensor::from<int64_t>({9}, t);
    CrossEntropyStats stats;
    LinearCrossEntropyArgs args;
    args.bias = p.bias;
    args.z_loss = 0.1;
    args.stats = &stats;
    if (chunked) args.options = Options({.batch_chunk_size = 4});
    linear_cross_entropy(p.input, p.weight, p.target, args);
    EXPECT_EQ(stats.rows, 8);
    double loss = 0, z_loss = 0;
    int64_t correct = 0;
    for (size_t r = 0; r < 9; ++r) {
      const double lse = stats.lse.to_vector<double>()[r],
                   log_p = stats.target_logprob.to_vector<double>()[r];
      const double entropy = stats.entropy.to_vector<double>()[r];
      if (r == 3) {
        EXPECT_TRUE(std::isnan(lse) && std::isnan(log_p) && std::isnan(entropy));
        continue;
      }
      double total = 0, expected_entropy = 0;
      for (size_t c = 0; c < 700; ++c) total += std::exp(logits[r * 700 + c]);
      for (size_t c = 0; c < 700; ++c) {
        const double log_q = logits[r * 700 + c] - std::log(total);
        expected_entropy -= std::exp(log_q) * log_q;
      }
      EXPECT_NEAR(lse, std::log(total), 1e-12);
      EXPECT_NEAR(log_p, logits[r * 700 + static_cast<size_t>(t[r])] - std::log(total), 1e-12);
      EXPECT_NEAR(entropy, expected_entropy, 1e-12);
      const auto row = logits.begin() + static_cast<int64_t>(r) * 700;
      correct += std::max_element(row, row + 700) - row == t[r];
      loss -= log_p;
      z_loss += 0.1 * lse * lse;
    }
    EXPECT_EQ(stats.correct_rows, correct);
    EXPECT_GE(stats.correct.to_vector<int64_t>()[5], 1);
    EXPECT_NEAR(stats.loss_sum, loss, 1e-10);
    EXPECT_NEAR(stats.z_loss, z_loss, 1e-10);
    EXPECT_FALSE(stats.lse.requires_grad());
  }
}

TEST(LinearCrossEntropyExtras, CorrectIsTheFirstOfEqualLogits) {
  CrossEntropyStats stats;
  LinearCrossEntropyArgs args;
  args.stats = &stats;
  args.options = Options();
  const Tensor x = Tensor::full({2, 1}, 1, DType::f64), w = Tensor::full({600, 1}, 1, DType::f64);
  linear_cross_entropy(x, w, Tensor::from<int64_t>({2}, std::vector<int64_t>{0, 599}), args);
  EXPECT_EQ(stats.correct.to_vector<int64_t>(), (std::vector<int64_t>{1, 0}));
  EXPECT_NEAR(stats.entropy.to_vector<double>()[0], std::log(600.0), 1e-13);
}

// ---- 16-bit inputs

double norm(const std::vector<double>& v) {
  double s = 0;
  for (double x : v) s += x * x;
  return std::sqrt(s);
}

// ‖g - ref‖ / ‖ref‖, in units of the dtype's epsilon.
double error_in_eps(const Tensor& g, const Tensor& reference, DType dtype) {
  std::vector<double> difference = g.to_vector<double>();
  const std::vector<double> ref = reference.to_vector<double>();
  for (size_t i = 0; i < ref.size(); ++i) difference[i] -= ref[i];
  return norm(difference) / (epsilon(dtype) + norm(ref)) / epsilon(dtype);
}

TEST(LinearCrossEntropyExtras, AccurateAndBalancedKeepThreeEpsAtEveryChunkCount) {
  const int64_t N = device_is_emulated() ? 200 : 1000;
  for (DType dtype : {DType::bf16, DType::f16}) {
    for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
      Problem p(N, 24, 60, 1, dtype);
      Problem exact(1, 1, 1);
      exact.input = p.input.to(DType::f64).set_requires_grad();
      exact.weight = p.weight.to(DType::f64).set_requires_grad();
      exact.bias = p.bias.to(DType::f64).set_requires_grad();
      LinearCrossEntropyArgs reference;
      reference.reduction = reduction;
      reference.bias = exact.bias;
      const Tensor ones = Tensor::full({N}, 1, DType::f64);
      backward(linear_cross_entropy(exact.input, exact.weight, p.target, reference),
               reduction == Reduction::none ? ones : Tensor());
      for (const char* policy : {"accurate", "balanced"}) {
        for (int64_t rows : {int64_t{1}, int64_t{10}, N}) {
          SCOPED_TRACE(fmt::format("{} {} {} rows {}", dtype, name(reduction), policy, rows));
          LinearCrossEntropyArgs args;
          args.reduction = reduction;
          args.bias = p.bias;
          args.loss_dtype = DType::f32;
          args.options = Options({.batch_chunk_size = rows, .acc_policy = policy, .acc_dtype = DType::f32});
          p.clear();
          backward(linear_cross_entropy(p.input, p.weight, p.target, args),
                   reduction == Reduction::none ? ones.to(DType::f32) : Tensor());
          EXPECT_LE(error_in_eps(p.input.grad(), exact.input.grad(), dtype), 3);
          EXPECT_LE(error_in_eps(p.weight.grad(), exact.weight.grad(), dtype), 3);
          EXPECT_LE(error_in_eps(p.bias.grad(), exact.bias.grad(), dtype), 3);
        }
      }
    }
  }
}

// p / N is below f16's normal numbers: rounded there, it would lose most of its digits.
TEST(LinearCrossEntropyExtras, MeanInF16KeepsGradientsSmallerThanItsNormalNumbers) {
  const int64_t N = device_is_emulated() ? 4000 : 20000;
  Problem p(N, 2, 200, 1, DType::f16);
  Problem exact = p;
  for (auto [x, from] :
       {std::pair{&exact.input, &p.input}, {&exact.weight, &p.weight}, {&exact.bias, &p.bias}})
    *x = from->to(DType::f64).set_requires_grad();
  backward(exact.loss({}));
  for (const char* policy : {"accurate", "balanced"}) {
    LinearCrossEntropyArgs args;
    args.options = Options({.batch_chunk_size = 500, .acc_policy = policy, .acc_dtype = DType::f32});
    args.loss_dtype = DType::f32;
    // A normalizer of 1 and an upstream gradient of 1 / N: the results themselves stay normal.
    for (double normalizer : {1.0, static_cast<double>(N)}) {
      args.normalizer = normalizer;
      p.clear();
      backward(p.loss(args), Tensor::scalar(static_cast<float>(normalizer / N)));
      EXPECT_LE(error_in_eps(p.weight.grad(), exact.weight.grad(), DType::f16), 3) << policy << normalizer;
      EXPECT_LE(error_in_eps(p.bias.grad(), exact.bias.grad(), DType::f16), 3) << policy << normalizer;
    }
  }
}

// A row's largest gradient is its target's. In one sum with the others, it makes each later
// term round at its size.
TEST(LinearCrossEntropyExtras, GradientsOfTheTargetsDoNotCoarsenTheOthers) {
  Problem p(100, 64, 1000, 1, DType::f32, 0.5);
  Problem exact = p;
  for (auto [x, from] :
       {std::pair{&exact.input, &p.input}, {&exact.weight, &p.weight}, {&exact.bias, &p.bias}})
    *x = from->to(DType::f64).set_requires_grad();
  backward(exact.loss({}));
  for (int64_t rows : {1, 10, 100}) {
    p.clear();
    backward(p.loss(chunked(rows)));
    EXPECT_LE(error_in_eps(p.input.grad(), exact.input.grad(), DType::f32), 2) << rows;
    EXPECT_LE(error_in_eps(p.weight.grad(), exact.weight.grad(), DType::f32), 2) << rows;
    EXPECT_LE(error_in_eps(p.bias.grad(), exact.bias.grad(), DType::f32), 2) << rows;
  }
}

// p = 0.999 with 32000 classes: the gradient at the true class is p - 1, and must be subtracted before it is
// rounded.
TEST(LinearCrossEntropyExtras, ConfidentTargetInBf16) {
  const int64_t C = 32000;
  std::vector<double> w(static_cast<size_t>(C), 0.0);
  w[7] = std::log(0.999 / 0.001 * (C - 1));
  const Tensor exact_weight = Tensor::from<double>({C, 1}, w).to(DType::bf16);
  for (const char* policy : {"accurate", "balanced", "compact"}) {
    Tensor input = Tensor::full({1, 1}, 1, DType::bf16), weight = exact_weight.clone();
    weight.set_requires_grad();
    LinearCrossEntropyArgs args;
    args.options = Options({.acc_policy = policy, .acc_dtype = DType::f32});
    backward(linear_cross_entropy(input, weight, Tensor::full({1}, 7, DType::i64), args));
    const double odds = std::exp(exact_weight.to_vector<double>()[7]) / (C - 1);
    const double expected = -1 / (1 + odds);
    EXPECT_NEAR(weight.grad().to_vector<double>()[7] / expected, 1, 3 * epsilon(DType::bf16)) << policy;
  }
}

// A sum of 70000 exponentials near 1 is beyond f16's largest number.
TEST(LinearCrossEntropyExtras, LargeVocabularyInF16) {
  const int64_t C = 70000;
  for (bool mixed : {false, true}) {
    Tensor input = Tensor::zeros({3, 2}, DType::f16), weight = Tensor::zeros({C, 2}, DType::f16);
    input.set_requires_grad();
    LinearCrossEntropyArgs args;
    args.options = Options({.acc_policy = "accurate", .acc_dtype = mixed ? DType::f32 : DType::f16});
    const Tensor loss = linear_cross_entropy(input, weight, Tensor::zeros({3}, DType::i64), args);
    EXPECT_NEAR(loss.item(), std::log(70000.0), 0.01);
    backward(loss);
  }
}

TEST(LinearCrossEntropyExtras, UpstreamZeroGivesZeroAlsoOverAnOverflow) {
  Tensor input = Tensor::full({64, 1}, 60000, DType::f16).set_requires_grad(),
         weight = Tensor::zeros({4, 1}, DType::f16);
  weight.set_requires_grad();
  LinearCrossEntropyArgs args;
  args.reduction = Reduction::sum;
  args.options = Options();
  backward(linear_cross_entropy(input, weight, Tensor::zeros({64}, DType::i64), args),
           Tensor::scalar(0, DType::f16));
  for (double v : weight.grad().to_vector<double>()) EXPECT_EQ(v, 0);
}

// ---- Errors

TEST(LinearCrossEntropyExtras, Errors) {
  Problem p(3, 2, 4);
  for (bool chunked : {false, true}) {
    LinearCrossEntropyArgs good;
    if (chunked) good.options = Options();
    const auto refuse = [&](auto change, const std::string& part) {
      LinearCrossEntropyArgs args = good;
      change(args);
      expect_error<ValueError>([&] { linear_cross_entropy(p.input, p.weight, p.target, args); }, part);
    };
    refuse([](auto& a) { a.softcap = 0; }, "softcap 0");
    refuse([](auto& a) { a.softcap = -1; }, "softcap -1");
    refuse([](auto& a) { a.softcap = std::nan(""); }, "softcap nan");
    refuse([](auto& a) { a.logit_scale = INFINITY; }, "logit_scale inf");
    refuse([](auto& a) { a.z_loss = -1e-3; }, "z_loss -0.001");
    refuse([](auto& a) { a.normalizer = 0; }, "normalizer 0");
    refuse([](auto& a) { a.token_weight = Tensor::zeros({4}, DType::f64); }, "token_weight of shape (4,)");
  }
}

}  // namespace
}  // namespace tapehead
