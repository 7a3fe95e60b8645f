#include "tapehead/ops/linear_cross_entropy.h"

#include <cmath>
#include <limits>

#include "tapehead/core/log.h"
#include "tapehead/core/memory.h"
#include "tapehead/core/view.h"
#include "tapehead/ops/matmul.h"
#include "tapehead/tests/ops/head_problem.h"

namespace tapehead {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

using Options = LinearCrossEntropyOptions;
using Problem = HeadProblem;

// ---- Against PyTorch

Options options_of(const GoldenCase& golden) {
  Options::Fields fields;
  const auto given = [&](const char* field) { return golden.has(fmt::format("options/{}", field)); };
  if (given("batch_chunk_size")) fields.batch_chunk_size = golden.integer("options/batch_chunk_size");
  if (given("chunking_method")) {
    fields.chunking_method.reset();  // None
    if (!golden.is_none("options/chunking_method"))
      fields.chunking_method = golden.text("options/chunking_method");
  }
  if (given("acc_policy")) fields.acc_policy = golden.text("options/acc_policy");
  if (given("acc_dtype")) fields.acc_dtype = parse_dtype(golden.text("options/acc_dtype"));
  if (given("allow_retain_graph")) fields.allow_retain_graph = golden.flag("options/allow_retain_graph");
  return Options(fields);
}

TEST(LinearCrossEntropy, AgreesWithPyTorch) {
  for (GoldenCase& golden : golden_cases("lce.safetensors", "lce")) {
    LinearCrossEntropyArgs args;
    args.bias = golden.input("bias");
    args.class_weight = golden.input("class_weight");
    args.reduction = parse_reduction(golden.text("reduction"));
    if (!golden.is_none("ignore_index")) args.ignore_index = golden.integer("ignore_index");
    args.label_smoothing = golden.number("label_smoothing");
    if (!golden.is_none("options")) args.options = options_of(golden);
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
          expect_gradcheck(
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
      expect_gradcheck(
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
  expect_gradcheck(
      [&](const std::vector<Tensor>& in) { return linear_cross_entropy(in[0], in[1], in[2], args); },
      {p.input, p.weight, q});
  expect_gradcheck(
      [&](const std::vector<Tensor>& in) { return linear_cross_entropy(in[0], in[1], q.detach(), args); },
      {p.input, p.weight});
}

TEST(LinearCrossEntropy, GradcheckOfKDimensionalWeight) {
  Tensor input = random_tensor({3, 2}, 1).set_requires_grad(),
         weight = random_tensor({4, 2, 3, 2}, 2).set_requires_grad();
  Tensor bias = random_tensor({4, 2, 3}, 3).set_requires_grad();
  const Tensor target = random_indices({3, 2, 3}, 4, 4);
  expect_gradcheck(
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
  expect_gradcheck(
      [&](const std::vector<Tensor>& in) { return linear_cross_entropy(in[0], in[0], target, chunked(4)); },
      {x});
}

// The reference path once took the second dimension for the classes.
TEST(LinearCrossEntropy, LeadingDimensionsAreRowsOnBothPaths) {
  Tensor input = random_tensor({2, 5, 4}, 1).set_requires_grad(),
         weight = random_tensor({5, 4}, 2).set_requires_grad();  // as many classes as the second dimension
  const Tensor indices = random_indices({2, 5}, 5, 3), probabilities = random_tensor({2, 5, 5}, 4);
  const Tensor token_weight = random_tensor({2, 5}, 6);
  for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    for (const Tensor& target : {indices, probabilities}) {
      LinearCrossEntropyArgs args;
      args.reduction = reduction;
      args.token_weight = token_weight;
      LinearCrossEntropyArgs flat = args;
      flat.token_weight = reshape(token_weight, {10});
      const Tensor flat_target =
          reshape(target, target.dim() == 2 ? std::vector<int64_t>{10} : std::vector<int64_t>{10, 5});
      const Tensor expected = linear_cross_entropy(reshape(input, {10, 4}), weight, flat_target, flat);
      for (bool with_options : {false, true}) {
        if (with_options) args.options = Options({.batch_chunk_size = 4});
        const Tensor loss = linear_cross_entropy(input, weight, target, args);
        EXPECT_EQ(loss.shape(), reduction == Reduction::none ? Shape({2, 5}) : Shape());
        expect_close(reshape(loss, {loss.numel()}).detach(), reshape(expected, {loss.numel()}).detach(),
                     1e-13, 0,
                     fmt::format("{} {} options {}", name(reduction), target.shape(), with_options));
        expect_gradcheck(
            [&](const std::vector<Tensor>& in) { return linear_cross_entropy(in[0], in[1], target, args); },
            {input, weight});
      }
    }
  }
  Tensor row = random_tensor({4}, 5).set_requires_grad();
  for (LinearCrossEntropyArgs args : {LinearCrossEntropyArgs(), chunked(4)}) {
    expect_gradcheck(
        [&](const std::vector<Tensor>& in) {
          return linear_cross_entropy(in[0], in[1], Tensor::full({}, 2, DType::i64), args);
        },
        {row, weight});
  }
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

// ---- mean and sum: buffers consumed in place

TEST(LinearCrossEntropy, BackwardAllocatesNothingAndHandsOnItsBuffers) {
  Problem p(64, 16, 300, 1, DType::f32);
  p.mask({3, 7});
  const Tensor loss = p.loss(chunked(8));
  const Tensor upstream = Tensor::scalar(2);
  const MemoryStats before = memory_stats(test_device());
  backward(loss, upstream);
  EXPECT_EQ(memory_stats(test_device()).allocations, before.allocations);
  EXPECT_EQ(memory_stats(test_device()).live_bytes, before.live_bytes);
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

TEST(LinearCrossEntropy, GradientsOfGradientsAreRefused) {
  Problem p(3, 2, 4);
  backward(p.loss(chunked(2)));
  expect_error<RuntimeError>(
      [&] {
        backward(p.weight.grad(), Tensor::zeros({4, 2}, DType::f64));
      },
      "gradients of gradients");
}

TEST(LinearCrossEntropy, WhatBackwardReadsAgainMayNotBeChangedInPlace) {
  for (LinearCrossEntropyArgs args : {LinearCrossEntropyArgs(), chunked(2)}) {
    args.reduction = Reduction::none;
    Problem p(3, 2, 4);
    p.target = random_tensor({3, 4}, 9);
    args.class_weight = p.class_weight;
    for (Tensor* x : {&p.weight, &p.target, &args.class_weight}) {
      const Tensor loss = p.loss(args);
      {
        const NoGradGuard no_grad;
        x->fill(0.5);
      }
      expect_error<RuntimeError>([&] { backward(loss, Tensor::full({3}, 1, DType::f64)); },
                                 fmt::format("of shape {} was changed in place", x->shape()));
    }
  }
}

// ---- Only what is wanted

TEST(LinearCrossEntropy, FrozenTensorsCostNothing) {
  const auto bytes = [](bool input, bool weight) {
    Problem p(64, 32, 500, 1, DType::f32);
    p.bias = {};
    p.input.set_requires_grad(input);
    p.weight.set_requires_grad(weight);
    reset_peak(test_device());
    const int64_t before = memory_stats(test_device()).live_bytes;
    const Tensor loss = p.loss(chunked(8));
    const int64_t peak = memory_stats(test_device()).peak_bytes - before;
    if (loss.requires_grad()) backward(loss);
    EXPECT_EQ(p.input.grad().defined(), input);
    EXPECT_EQ(p.weight.grad().defined(), weight);
    return peak;
  };
  const int64_t nothing = bytes(false, false);
  const int64_t targets = 8 * 8;  // a chunk's gradients at its targets
  // Where nobody counts rows, they are picked one by one, also to receive their gradient.
  const int64_t picked = test_device().kind == Device::cpu ? 0 : 8 * 32 * 4;
  EXPECT_EQ(bytes(true, false) - nothing, 64 * 32 * 4 + targets + picked);
  EXPECT_EQ(bytes(false, true) - nothing, 500 * 32 * 4 + targets);
  EXPECT_LT(nothing, 64 * 500 * 4);  // under the whole logits
}

TEST(LinearCrossEntropy, NoGradComputesTheLossAlone) {
  Problem p(8, 4, 50);
  const NoGradGuard no_grad;
  reset_peak(test_device());
  const int64_t before = memory_stats(test_device()).live_bytes;
  const Tensor loss = p.loss(chunked(2));
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_LE(memory_stats(test_device()).peak_bytes - before, 2 * 50 * 8 + 8 * 8 * 8);  // a few numbers a row
}

TEST(LinearCrossEntropy, UpstreamThatNeverArrivesAllocatesNothing) {
  Problem p(8, 4, 50);
  const int64_t before = memory_stats(test_device()).live_bytes;
  { const Tensor loss = p.loss(chunked(2)); }
  EXPECT_EQ(memory_stats(test_device()).live_bytes, before);
  EXPECT_FALSE(p.weight.grad().defined());
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
  for (const std::string cause : {"(C, d1, ..., dK, F)", "probabilities that require a gradient"}) {
    int64_t count = 0;
    for (const auto& [key, message] : issued_warnings())
      count += message.find("options ignored") != message.npos && message.find(cause) != message.npos;
    EXPECT_EQ(count, 1) << cause;
  }
}

// ---- Errors: type and text, and no gradient

TEST(LinearCrossEntropy, Errors) {
  const Problem p(3, 2, 4);
  const auto call = [&](const Tensor& x, const Tensor& w, const Tensor& t,
                        const LinearCrossEntropyArgs& args) {
    return [=] { linear_cross_entropy(x, w, t, args).item(); };  // or when it is read
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
    expect_error<ValueError>(
        call(Tensor::zeros({3, 0}, DType::f64), Tensor::zeros({4, 0}, DType::f64), p.target, args),
        "no feature");
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
