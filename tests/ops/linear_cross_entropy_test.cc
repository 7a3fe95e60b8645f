#include "tapehead/ops/linear_cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tapehead/core/gradcheck.h"
#include "tapehead/core/log.h"
#include "tapehead/core/memory.h"
#include "tapehead/core/view.h"
#include "tapehead/ops/matmul.h"
#include "tapehead/tests/golden_cases.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

using Options = LinearCrossEntropyOptions;

LinearCrossEntropyArgs chunked(int64_t rows, Reduction reduction = Reduction::mean,
                               bool allow_retain_graph = false) {
  LinearCrossEntropyArgs args;
  args.reduction = reduction;
  args.options = Options({.allow_retain_graph = allow_retain_graph, .batch_chunk_size = rows});
  return args;
}

// A small problem: N rows, F features, C classes, f64 leaves.
struct Problem {
  Tensor input, weight, bias, target;

  Problem(int64_t N, int64_t F, int64_t C, uint64_t seed = 1, DType dtype = DType::f64)
      : input(random_tensor({N, F}, seed, 1, dtype)),
        weight(random_tensor({C, F}, seed + 1, 1, dtype)),
        bias(random_tensor({C}, seed + 2, 1, dtype)),
        target(random_indices({N}, static_cast<uint64_t>(C), seed + 3)) {
    input.set_requires_grad();
    weight.set_requires_grad();
    bias.set_requires_grad();
  }

  void mask(std::initializer_list<int64_t> rows) {
    std::vector<int64_t> t = target.to_vector<int64_t>();
    for (int64_t r : rows) t[static_cast<size_t>(r)] = -100;
    target = Tensor::from<int64_t>({input.size(0)}, t);
  }

  Tensor loss(LinearCrossEntropyArgs args) const {
    args.bias = bias;
    return linear_cross_entropy(input, weight, target, args);
  }

  void clear() {
    for (Tensor* x : {&input, &weight, &bias}) x->set_grad({});
  }
};

// Loss and gradients of both problems' arguments agree.
void expect_same(Problem& p, const LinearCrossEntropyArgs& a, const LinearCrossEntropyArgs& b,
                 const Tensor& upstream, double rtol, const std::string& what) {
  p.clear();
  const Tensor la = p.loss(a);
  backward(la, upstream);
  const Tensor gi = p.input.grad(), gw = p.weight.grad(), gb = p.bias.grad();
  p.clear();
  const Tensor lb = p.loss(b);
  backward(lb, upstream);
  expect_close(la, lb.detach(), rtol, rtol, what + ": loss");
  expect_close(gi, p.input.grad(), rtol, rtol, what + ": input");
  expect_close(gw, p.weight.grad(), rtol, rtol, what + ": weight");
  expect_close(gb, p.bias.grad(), rtol, rtol, what + ": bias");
}

// ---- Against PyTorch

TEST(LinearCrossEntropy, AgreesWithPyTorch) {
  for (GoldenCase& golden : golden_cases("lce.safetensors", "lce")) {
    const nlohmann::json& p = golden.params;
    LinearCrossEntropyArgs args;
    args.bias = golden.input("bias");
    args.class_weight = golden.input("class_weight");
    args.reduction = parse_reduction(p.at("reduction").get<std::string>());
    if (!p.at("ignore_index").is_null()) args.ignore_index = p["ignore_index"].get<int64_t>();
    args.label_smoothing = p.at("label_smoothing").get<double>();
    if (!p.at("options").is_null()) {
      Options::Fields fields;
      for (const auto& [key, value] : p["options"].items()) {
        if (key == "batch_chunk_size") fields.batch_chunk_size = value.get<int64_t>();
        if (key == "chunking_method")
          fields.chunking_method = value.is_null() ? std::nullopt : std::optional(value.get<std::string>());
        if (key == "acc_policy") fields.acc_policy = value.get<std::string>();
        if (key == "acc_dtype" && !value.is_null()) fields.acc_dtype = parse_dtype(value.get<std::string>());
        if (key == "allow_retain_graph") fields.allow_retain_graph = value.get<bool>();
      }
      args.options = Options(fields);
    }
    const bool f32 = golden.out.dtype() == DType::f32;
    const Tensor loss =
        linear_cross_entropy(golden.inputs.at(0), golden.inputs.at(1), golden.inputs.at(2), args);
    if (golden.degenerate()) {
      expect_close(loss, golden.out, 0, 0, golden.name);
    } else {
      expect_golden(golden, loss, f32 ? 1e-5 : 1e-11, f32 ? 1e-6 : 1e-12);
    }
  }
}

// ---- Gradients

TEST(LinearCrossEntropy, Gradcheck) {
  for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    for (int64_t rows : {1, 2, 4, 7, 100}) {
      for (double smoothing : {0.0, 0.2}) {
        for (bool weighted : {false, true}) {
          Problem p(7, 3, 5);
          p.mask({0, 5});
          LinearCrossEntropyArgs args = chunked(rows, reduction);
          args.label_smoothing = smoothing;
          if (weighted) args.class_weight = Tensor::from<double>({5}, std::vector<double>{0.5, 1, 0, 2, 1.5});
          gradcheck(
              [&](const std::vector<Tensor>& in) {
                args.bias = in[2];
                return linear_cross_entropy(in[0], in[1], p.target, args);
              },
              {p.input, p.weight, p.bias});
        }
      }
    }
  }
}

TEST(LinearCrossEntropy, GradcheckOfStridedInputsAndWeights) {
  Tensor input = slice(transpose(random_tensor({6, 8}, 1), 0, 1), 0, 0, 8, 2);  // (4, 6)
  Tensor weight = transpose(random_tensor({6, 5}, 2), 0, 1);                    // (5, 6)
  Tensor every_other = slice(random_tensor({5, 12}, 3), 1, 0, 12, 2);           // (5, 6), dense along neither
  input.set_requires_grad();
  weight.set_requires_grad();
  every_other.set_requires_grad();
  const Tensor target = random_indices({4}, 5, 4);
  for (Reduction reduction : {Reduction::sum, Reduction::none}) {
    for (const Tensor& w : {weight, every_other}) {
      gradcheck(
          [&](const std::vector<Tensor>& in) {
            return linear_cross_entropy(in[0], in[1], target, chunked(3, reduction));
          },
          {input, w});
    }
  }
}

TEST(LinearCrossEntropy, GradcheckOfProbabilitiesAndTheirLabelGradients) {
  Problem p(5, 3, 4);
  Tensor q = random_tensor({5, 4}, 8).set_requires_grad();
  LinearCrossEntropyArgs args = chunked(2);
  args.label_smoothing = 0.1;
  gradcheck([&](const std::vector<Tensor>& in) { return linear_cross_entropy(in[0], in[1], in[2], args); },
            {p.input, p.weight, q});
  gradcheck(
      [&](const std::vector<Tensor>& in) { return linear_cross_entropy(in[0], in[1], q.detach(), args); },
      {p.input, p.weight});
}

TEST(LinearCrossEntropy, GradcheckOfKDimensionalWeight) {
  Tensor input = random_tensor({3, 2}, 1).set_requires_grad(),
         weight = random_tensor({4, 2, 3, 2}, 2).set_requires_grad();
  Tensor bias = random_tensor({4, 2, 3}, 3).set_requires_grad();
  const Tensor target = random_indices({3, 2, 3}, 4, 4);
  gradcheck(
      [&](const std::vector<Tensor>& in) {
        LinearCrossEntropyArgs args;
        args.bias = in[2];
        args.reduction = Reduction::none;
        return linear_cross_entropy(in[0], in[1], target, args);
      },
      {input, weight, bias});
}

// A tied embedding: both uses of one tensor add up.
TEST(LinearCrossEntropy, SameTensorAsInputAndWeight) {
  Tensor x = random_tensor({6, 3}, 1).set_requires_grad();
  const Tensor target = random_indices({6}, 6, 2);
  gradcheck(
      [&](const std::vector<Tensor>& in) { return linear_cross_entropy(in[0], in[0], target, chunked(4)); },
      {x});
}

TEST(LinearCrossEntropy, LeadingDimensionsAreRows) {
  Tensor input = random_tensor({2, 3, 4}, 1).set_requires_grad(),
         weight = random_tensor({5, 4}, 2).set_requires_grad();
  const Tensor target = random_indices({2, 3}, 5, 3);
  for (Reduction reduction : {Reduction::mean, Reduction::none}) {
    const Tensor loss = linear_cross_entropy(input, weight, target, chunked(4, reduction));
    const Tensor flat =
        linear_cross_entropy(reshape(input, {6, 4}), weight, reshape(target, {6}), chunked(4, reduction));
    EXPECT_EQ(loss.to_vector<double>(), flat.to_vector<double>());
    EXPECT_EQ(loss.shape(), reduction == Reduction::none ? Shape({2, 3}) : Shape());
  }
  gradcheck(
      [&](const std::vector<Tensor>& in) { return linear_cross_entropy(in[0], in[1], target, chunked(4)); },
      {input, weight});
  Tensor row = random_tensor({4}, 5).set_requires_grad();
  gradcheck(
      [&](const std::vector<Tensor>& in) {
        return linear_cross_entropy(in[0], in[1], Tensor::full({}, 2, DType::i64), chunked(4));
      },
      {row, weight});
}

// ---- Chunks

TEST(LinearCrossEntropy, ChunkSizeNeverChangesTheResult) {
  Problem p(13, 7, 11);
  p.mask({0, 4, 5, 6, 7});  // one whole chunk of four
  LinearCrossEntropyArgs reference;
  for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    reference.reduction = reduction;
    const Tensor upstream =
        reduction == Reduction::none ? random_tensor({13}, 5) : Tensor::scalar(1.7, DType::f64);
    for (int64_t rows : {1, 2, 3, 4, 5, 7, 8, 12, 13, 14, 1000}) {
      expect_same(p, chunked(rows, reduction), reference, upstream, 1e-13, fmt::format("{} rows", rows));
    }
  }
}

TEST(LinearCrossEntropy, SmallestSizes) {
  for (auto [N, F, C] : std::vector<std::array<int64_t, 3>>{
           {1, 3, 4}, {4, 1, 3}, {4, 3, 1}, {1, 1, 1}, {3, 600, 2}, {2, 3, 1500}}) {
    Problem p(N, F, C);
    expect_same(p, chunked(2), {}, {}, 1e-12, fmt::format("{} {} {}", N, F, C));
  }
}

TEST(LinearCrossEntropy, MaskedRowsEqualRemovedRowsBitForBit) {
  Problem p(9, 4, 6, 1, DType::f32);
  p.mask({0, 3, 4, 8});
  const Tensor rows = Tensor::from<int64_t>({5}, std::vector<int64_t>{1, 2, 5, 6, 7});
  std::vector<float> kept;
  std::vector<int64_t> kept_target;
  for (int64_t r : rows.to_vector<int64_t>()) {
    for (float v : select(p.input, 0, r).to_vector<float>()) kept.push_back(v);
    kept_target.push_back(p.target.to_vector<int64_t>()[static_cast<size_t>(r)]);
  }
  Tensor input = Tensor::from<float>({5, 4}, kept).set_requires_grad();
  for (Reduction reduction : {Reduction::mean, Reduction::sum}) {
    p.clear();
    input.set_grad({});
    LinearCrossEntropyArgs args = chunked(2, reduction);
    const Tensor masked = p.loss(args);
    backward(masked);
    const std::vector<float> gw = p.weight.grad().to_vector<float>(), gx = p.input.grad().to_vector<float>();
    p.weight.set_grad({});
    args.bias = p.bias;
    const Tensor removed =
        linear_cross_entropy(input, p.weight, Tensor::from<int64_t>({5}, kept_target), args);
    backward(removed);
    EXPECT_EQ(masked.item(), removed.item());
    EXPECT_EQ(gw, p.weight.grad().to_vector<float>());
    std::vector<float> expected(36, 0.0f);
    for (size_t i = 0; i < 5; ++i) {
      for (size_t f = 0; f < 4; ++f)
        expected[static_cast<size_t>(rows.to_vector<int64_t>()[i]) * 4 + f] =
            input.grad().to_vector<float>()[i * 4 + f];
    }
    EXPECT_EQ(gx, expected);
  }
}

TEST(LinearCrossEntropy, MaskedRowsMayHoldNaN) {
  for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    Problem p(3, 2, 4);
    p.mask({1});
    std::vector<double> x = p.input.to_vector<double>();
    x[2] = x[3] = kNaN;
    p.input = Tensor::from<double>({3, 2}, x).set_requires_grad();
    const Tensor loss = p.loss(chunked(2, reduction));
    backward(loss, reduction == Reduction::none ? Tensor::full({3}, 1, DType::f64) : Tensor());
    for (const Tensor& t : {loss, p.input.grad(), p.weight.grad(), p.bias.grad()}) {
      for (double v : t.to_vector<double>()) EXPECT_TRUE(std::isfinite(v)) << name(reduction);
    }
    EXPECT_EQ(p.input.grad().to_vector<double>()[2], 0);
  }
}

TEST(LinearCrossEntropy, MaskedRowsWithClassWeightsReadNoWeightOfTheirs) {
  Problem p(4, 2, 3);
  p.mask({0, 2});
  LinearCrossEntropyArgs args = chunked(2), reference;
  args.class_weight = reference.class_weight = Tensor::from<double>({3}, std::vector<double>{2, 0.5, 1});
  expect_same(p, args, reference, {}, 1e-13, "class weights");
}

TEST(LinearCrossEntropy, NothingUnmasked) {
  for (int64_t N : {0, 3}) {
    Problem p(N, 2, 4);
    p.target = Tensor::full({N}, -100, DType::i64);
    const Tensor mean = p.loss(chunked(2));
    EXPECT_TRUE(std::isnan(mean.item()));
    backward(mean);
    for (double v : p.weight.grad().to_vector<double>()) EXPECT_TRUE(std::isnan(v));
    p.clear();
    const Tensor sum = p.loss(chunked(2, Reduction::sum));
    EXPECT_EQ(sum.item(), 0);
    backward(sum);
    for (double v : p.weight.grad().to_vector<double>()) EXPECT_EQ(v, 0);
    const Tensor none = p.loss(chunked(2, Reduction::none));
    EXPECT_EQ(none.to_vector<double>(), std::vector<double>(static_cast<size_t>(N), 0.0));
    backward(none, Tensor::full({N}, 1, DType::f64));
  }
}

// ---- none

TEST(LinearCrossEntropy, NoneWeighsRowsBeforeSummingTheWeightGradient) {
  Problem p(7, 3, 5);
  p.mask({0});
  LinearCrossEntropyArgs reference;
  reference.reduction = Reduction::none;
  expect_same(p, chunked(2, Reduction::none), reference, random_tensor({7}, 3, 5), 1e-12, "random upstream");
  const Tensor strided = slice(random_tensor({14}, 4), 0, 0, 14, 2);
  expect_same(p, chunked(2, Reduction::none), reference, strided, 1e-12, "strided upstream");
  expect_same(p, chunked(2, Reduction::none), reference, expand(Tensor::full({1}, 3, DType::f64), {7}), 1e-12,
              "expanded upstream");
}

TEST(LinearCrossEntropy, NoneTakesAnyNumberOfRetainedBackwards) {
  Problem p(5, 3, 4);
  const Tensor loss = p.loss(chunked(2, Reduction::none)), one = Tensor::full({5}, 1, DType::f64);
  backward(loss, one, true);
  const std::vector<double> once = p.weight.grad().to_vector<double>();
  backward(loss, one, true);
  backward(loss, one, false);
  const std::vector<double> thrice = p.weight.grad().to_vector<double>();
  for (size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(thrice[i], 3 * once[i], 1e-14);
  expect_error<RuntimeError>([&] { backward(loss, one); }, "retain_graph");
}

// ---- mean and sum: buffers consumed in place

TEST(LinearCrossEntropy, BackwardAllocatesNothingAndHandsOnItsBuffers) {
  Problem p(64, 16, 300, 1, DType::f32);
  p.mask({3, 7});
  const Tensor loss = p.loss(chunked(8));
  const Tensor upstream = Tensor::scalar(2);
  const MemoryStats before = memory_stats({});
  backward(loss, upstream);
  EXPECT_EQ(memory_stats({}).allocations, before.allocations);
  EXPECT_EQ(memory_stats({}).live_bytes, before.live_bytes);
}

TEST(LinearCrossEntropy, UpstreamOfTwoThenRetainedOfThree) {
  Problem p(6, 3, 5);
  backward(p.loss(chunked(4)));
  const std::vector<double> one = p.weight.grad().to_vector<double>();
  p.clear();
  const Tensor loss = p.loss(chunked(4, Reduction::mean, true));
  backward(loss, Tensor::scalar(2, DType::f64), true);
  const std::vector<double> two = p.weight.grad().to_vector<double>();
  p.clear();
  backward(loss, Tensor::scalar(3, DType::f64), true);
  const std::vector<double> three = p.weight.grad().to_vector<double>();
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(two[i], 2 * one[i], 1e-15);
    EXPECT_NEAR(three[i], 3 * one[i], 1e-15);
  }
}

TEST(LinearCrossEntropy, SecondBackwardNamesAllowRetainGraph) {
  for (bool retain : {false, true}) {
    Problem p(6, 3, 5);
    const Tensor loss = p.loss(chunked(4));
    backward(loss, {}, retain);
    const std::vector<double> g = p.weight.grad().to_vector<double>();
    expect_error<RuntimeError>([&] { backward(loss, {}, retain); }, "allow_retain_graph");
    EXPECT_EQ(p.weight.grad().to_vector<double>(), g);  // the error changed nothing
  }
}

TEST(LinearCrossEntropy, UpstreamZeroGivesZero) {
  Problem p(3, 2, 4, 1, DType::f32);
  p.input = Tensor::full({3, 2}, 1e38).set_requires_grad();
  p.weight = Tensor::full({4, 2}, 1e-10).set_requires_grad();
  backward(p.loss(chunked(2, Reduction::sum)), Tensor::scalar(0));
  for (const Tensor& x : {p.input, p.weight, p.bias}) {
    for (float v : x.grad().to_vector<float>()) EXPECT_EQ(v, 0);
  }
}

TEST(LinearCrossEntropy, GradientsOfGradientsAreRefused) {
  Problem p(3, 2, 4);
  backward(p.loss(chunked(2)));
  expect_error<RuntimeError>(
      [&] {
        backward(p.weight.grad(), Tensor::zeros({4, 2}, DType::f64));
      },
      "gradients of gradients");
}

TEST(LinearCrossEntropy, InputChangedInPlaceIsAnErrorWhereItIsReadAgain) {
  Problem p(3, 2, 4);
  const Tensor loss = p.loss(chunked(2, Reduction::none));
  {
    const NoGradGuard no_grad;
    p.weight.fill(0);
  }
  expect_error<RuntimeError>([&] { backward(loss, Tensor::full({3}, 1, DType::f64)); },
                             "[linear_cross_entropy] input 1 of shape (4, 2) was changed in place");
}

// ---- Only what is wanted

TEST(LinearCrossEntropy, FrozenTensorsCostNothing) {
  const auto bytes = [](bool input, bool weight) {
    Problem p(64, 32, 500, 1, DType::f32);
    p.bias = {};
    p.input.set_requires_grad(input);
    p.weight.set_requires_grad(weight);
    reset_peak({});
    const int64_t before = memory_stats({}).live_bytes;
    const Tensor loss = p.loss(chunked(8));
    const int64_t peak = memory_stats({}).peak_bytes - before;
    if (loss.requires_grad()) backward(loss);
    EXPECT_EQ(p.input.grad().defined(), input);
    EXPECT_EQ(p.weight.grad().defined(), weight);
    return peak;
  };
  const int64_t nothing = bytes(false, false);
  EXPECT_EQ(bytes(true, false) - nothing, 64 * 32 * 4);
  EXPECT_EQ(bytes(false, true) - nothing, 500 * 32 * 4);
  EXPECT_LT(nothing, 64 * 500 * 4);  // under the whole logits
}

TEST(LinearCrossEntropy, NoGradComputesTheLossAlone) {
  Problem p(8, 4, 50);
  const NoGradGuard no_grad;
  reset_peak({});
  const int64_t before = memory_stats({}).live_bytes;
  const Tensor loss = p.loss(chunked(2));
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_LE(memory_stats({}).peak_bytes - before, 2 * 50 * 8 + 8 * 8 * 4);
}

TEST(LinearCrossEntropy, UpstreamThatNeverArrivesAllocatesNothing) {
  Problem p(8, 4, 50);
  const int64_t before = memory_stats({}).live_bytes;
  { const Tensor loss = p.loss(chunked(2)); }
  EXPECT_EQ(memory_stats({}).live_bytes, before);
  EXPECT_FALSE(p.weight.grad().defined());
}

// ---- Numbers that broke others

TEST(LinearCrossEntropy, LogitsFarFromZero) {
  Problem p(4, 3, 40);
  Problem shifted = p;
  shifted.bias = Tensor::from<double>({40},
                                      [&] {
                                        std::vector<double> b = p.bias.to_vector<double>();
                                        for (double& v : b) v += 1e6;
                                        return b;
                                      }())
                     .set_requires_grad();
  EXPECT_NEAR(p.loss(chunked(2)).item(), shifted.loss(chunked(2)).item(), 1e-8);
}

TEST(LinearCrossEntropy, EqualLogitsOf1e20GiveLogC) {
  for (DType dtype : {DType::f64, DType::f32}) {
    const Tensor x = Tensor::full({3, 1}, 1e10, dtype), w = Tensor::full({9, 1}, 1e10, dtype);
    EXPECT_NEAR(linear_cross_entropy(x, w, Tensor::zeros({3}, DType::i64), chunked(2)).item(), std::log(9.0),
                1e-6);
  }
}

TEST(LinearCrossEntropy, BiasOfMinusInfinityOnAllClassesButOne) {
  Problem p(3, 2, 4);
  p.bias = Tensor::from<double>({4}, std::vector<double>{-kInf, -kInf, 0.5, -kInf}).set_requires_grad();
  p.target = Tensor::full({3}, 2, DType::i64);
  const Tensor loss = p.loss(chunked(2));
  EXPECT_EQ(loss.item(), 0);
  backward(loss);
  for (double v : p.input.grad().to_vector<double>()) EXPECT_EQ(v, 0);
}

TEST(LinearCrossEntropy, TargetAtMinusInfinity) {
  Problem p(3, 2, 4);
  p.bias = Tensor::from<double>({4}, std::vector<double>{-kInf, 0, 0.5, 0}).set_requires_grad();
  p.target = Tensor::zeros({3}, DType::i64);
  const Tensor loss = p.loss(chunked(2));
  EXPECT_EQ(loss.item(), kInf);
  backward(loss);
  for (const Tensor& x : {p.input, p.weight, p.bias}) {
    for (double v : x.grad().to_vector<double>()) EXPECT_TRUE(std::isfinite(v));
  }
}

TEST(LinearCrossEntropy, NaNPoisonsItsOwnRowOnly) {
  Problem p(4, 2, 5);
  std::vector<double> x = p.input.to_vector<double>();
  x[2] = kNaN;
  p.input = Tensor::from<double>({4, 2}, x).set_requires_grad();
  const Tensor loss = p.loss(chunked(4, Reduction::none));
  backward(loss, Tensor::full({4}, 1, DType::f64));
  const std::vector<double> l = loss.to_vector<double>(), g = p.input.grad().to_vector<double>();
  for (size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(std::isnan(l[r]), r == 1);
    EXPECT_EQ(std::isnan(g[2 * r]), r == 1);
  }
}

// More logits than 2^31, in the memory of a few rows.
TEST(LinearCrossEntropy, MoreThanTwoToThe31Logits) {
  const int64_t N = 70000, C = 31000;
  const Tensor input = random_tensor({N, 1}, 1, 1, DType::f32);
  const Tensor weight = random_tensor({C, 1}, 2, 1, DType::f32);
  const Tensor target = random_indices({N}, static_cast<uint64_t>(C), 3);
  reset_peak({});
  const int64_t before = memory_stats({}).live_bytes;
  const Tensor loss = linear_cross_entropy(input, weight, target, chunked(64, Reduction::none));
  EXPECT_LT(memory_stats({}).peak_bytes - before, int64_t{16} << 20);
  // The last row alone gives the same: nothing wrapped on the way to it.
  const Tensor last = linear_cross_entropy(slice(input, 0, N - 1, N), weight, slice(target, 0, N - 1, N),
                                           chunked(1, Reduction::none));
  EXPECT_EQ(loss.to_vector<float>().back(), last.to_vector<float>().back());
}

TEST(LinearCrossEntropy, RunsAreBitIdentical) {
  Problem p(50, 33, 700, 1, DType::f32);
  std::vector<float> first;
  for (int run = 0; run < 3; ++run) {
    p.clear();
    backward(p.loss(chunked(16)));
    const std::vector<float> g = p.weight.grad().to_vector<float>();
    if (run == 0) first = g;
    EXPECT_EQ(g, first);
  }
}

// ---- Which path

TEST(LinearCrossEntropy, FallsBackWithOneWarningPerCause) {
  clear_warnings();
  const Tensor x = random_tensor({3, 2}, 1), w = random_tensor({4, 2, 2}, 2),
               t = random_indices({3, 2}, 4, 3);
  LinearCrossEntropyArgs none;
  none.reduction = Reduction::none;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(linear_cross_entropy(x, w, t, chunked(2, Reduction::none)).to_vector<double>(),
              linear_cross_entropy(x, w, t, none).to_vector<double>());
  }
  Problem p(3, 2, 4);
  p.target = random_tensor({3, 4}, 5).set_requires_grad();
  for (int i = 0; i < 2; ++i) p.loss(chunked(2));
  const std::vector<Warning> warnings = issued_warnings();
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_NE(warnings[0].message.find("options ignored"), std::string::npos);
  EXPECT_NE(warnings[0].message.find("(C, d1, ..., dK, F)"), std::string::npos);
  EXPECT_NE(warnings[1].message.find("probabilities that require a gradient"), std::string::npos);
}

// ---- Errors: type and text, and no gradient

TEST(LinearCrossEntropy, Errors) {
  const Problem p(3, 2, 4);
  const auto call = [&](const Tensor& x, const Tensor& w, const Tensor& t,
                        const LinearCrossEntropyArgs& args) {
    return [=] { linear_cross_entropy(x, w, t, args); };
  };
  for (LinearCrossEntropyArgs args : {LinearCrossEntropyArgs(), chunked(2)}) {
    expect_error<ValueError>(
        call(p.input, p.weight, Tensor::from<int64_t>({3}, std::vector<int64_t>{0, -100, 4}), args),
        "target 4 in row 2");
    expect_error<ValueError>(call(p.input, random_tensor({4, 3}, 1), p.target, args), "has 2 features");
    expect_error<ValueError>(call(p.input, p.weight, Tensor::zeros({2}, DType::i64), args),
                             "target of shape (2,)");
    expect_error<TypeError>(call(p.input, p.weight, Tensor::zeros({3}, DType::f64), args),
                            "class indices are i64 or i32");
    expect_error<TypeError>(call(p.input, p.weight.to(DType::f32), p.target, args), "weight of f32");
    expect_error<TypeError>(call(p.target, p.weight, p.target, args), "floating input");
    expect_error<ValueError>(call(p.input, Tensor::zeros({0, 2}, DType::f64), p.target, args), "no class");
    expect_error<ValueError>(call(random_tensor({2}, 1), random_tensor({4, 3, 2}, 1), p.target, args),
                             "takes an input (N, F)");
    args.bias = Tensor::zeros({3}, DType::f64);
    expect_error<ValueError>(call(p.input, p.weight, p.target, args), "bias of shape (3,)");
    args.bias = Tensor::zeros({4}, DType::f32);
    expect_error<TypeError>(call(p.input, p.weight, p.target, args), "bias of f32");
    args.bias = {};
    args.class_weight = Tensor::zeros({5}, DType::f64);
    expect_error<ValueError>(call(p.input, p.weight, p.target, args), "class_weight of shape (5,)");
    args.class_weight = {};
    args.ignore_index = 1;
    expect_error<RuntimeError>(call(p.input, p.weight, Tensor::zeros({3, 4}, DType::f64), args),
                               "ignore_index 1 with class probabilities");
    args.ignore_index = {};
    args.label_smoothing = -0.1;
    expect_error<ValueError>(call(p.input, p.weight, p.target, args), "label_smoothing -0.1");
  }
  LinearCrossEntropyArgs args;
  args.options = Options({.batch_chunk_size = 3, .chunking_method = "aspect_ratio"});
  expect_error<ValueError>(call(p.input, p.weight, p.target, args),
                           "batch_chunk_size 3 disagrees with 2 rows");
  args.options = Options({.acc_dtype = DType::f32});
  expect_error<RuntimeError>(call(p.input, p.weight, p.target, args),
                             "acc_dtype f32 is not allowed for an input of f64");
}

}  // namespace
}  // namespace tapehead
