// A small call of linear_cross_entropy, as its tests make it.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tapehead/ops/linear_cross_entropy.h"
#include "tapehead/tests/golden_cases.h"
#include "tapehead/tests/testing.h"

namespace tapehead {

/// Chunks of so many rows.
inline LinearCrossEntropyArgs chunked(int64_t rows, Reduction reduction = Reduction::mean,
                                      bool allow_retain_graph = false) {
  LinearCrossEntropyArgs args;
  args.reduction = reduction;
  args.options =
      LinearCrossEntropyOptions({.allow_retain_graph = allow_retain_graph, .batch_chunk_size = rows});
  return args;
}

/// N rows, F features, C classes; input, weight and bias are leaves.
struct HeadProblem {
  Tensor input, weight, bias, target;
  Tensor class_weight, token_weight;  // between 0.5 and 1.5

  HeadProblem(int64_t N, int64_t F, int64_t C, uint64_t seed = 1, DType dtype = DType::f64, double scale = 1)
      : input(random_tensor({N, F}, seed, scale, dtype)),
        weight(random_tensor({C, F}, seed + 1, scale, dtype)),
        bias(random_tensor({C}, seed + 2, 1, dtype)),
        target(random_indices({N}, static_cast<uint64_t>(C), seed + 3)),
        class_weight(around_one(C, seed + 4, dtype)),
        token_weight(around_one(N, seed + 5, dtype)) {
    for (Tensor* x : leaves()) x->set_requires_grad();
  }

  std::vector<Tensor*> leaves() { return {&input, &weight, &bias}; }

  void mask(const std::vector<int64_t>& rows) {
    std::vector<int64_t> t = target.to_vector<int64_t>();
    for (int64_t r : rows) t[static_cast<size_t>(r)] = -100;
    target = Tensor::from<int64_t>(target.shape(), t);
  }

  /// Arguments of its own for each bit of `mask`, six of them.
  void set_arguments(int mask, CrossEntropyArgs& args) const {
    if (mask & 1) args.label_smoothing = 0.2;
    if (mask & 2) args.softcap = 1.5;
    if (mask & 4) args.logit_scale = 0.7;
    if (mask & 8) args.z_loss = 0.05;
    if (mask & 16) args.token_weight = token_weight;
    if (mask & 32) args.class_weight = class_weight;
  }

  /// With the bias.
  Tensor loss(LinearCrossEntropyArgs args) const {
    args.bias = bias;
    return linear_cross_entropy(input, weight, target, args);
  }

  void clear() {
    for (Tensor* x : leaves()) x->set_grad({});
  }

 private:
  static Tensor around_one(int64_t n, uint64_t seed, DType dtype) {
    std::vector<double> values = random_tensor({n}, seed, 0.5, dtype).to_vector<double>();
    for (double& v : values) v += 1;
    return Tensor::from<double>({n}, values).to(dtype);
  }
};

/// Loss and gradients of both arguments agree.
inline void expect_same(HeadProblem& p, const LinearCrossEntropyArgs& a, const LinearCrossEntropyArgs& b,
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

}  // namespace tapehead
