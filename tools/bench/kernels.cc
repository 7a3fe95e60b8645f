// The speed of each kernel alone, in f32: what a change of one kernel is judged by. The sizes are those of
// GPT-2's smallest model on 4 x 64 tokens, and of its head at several rows a chunk.
#include <benchmark/benchmark.h>

#include <cmath>

#include "tapehead/backends/backend.h"
#include "tapehead/core/view.h"
#include "tapehead/ops/random.h"

namespace tapehead {
namespace {

using benchmark::Counter;
using benchmark::State;

constexpr int64_t kRows = 256, kFeatures = 768, kClasses = 50257;  // N = 4 x 64, F, C
constexpr int64_t kBatch = 4, kHeads = 12, kPositions = 64, kWidth = 64;

Tensor normal(const Shape& shape, double deviation = 1) {
  Generator random{.seed = 1};
  return random_normal(shape, 0, deviation, random);
}

Tensor indices(int64_t rows, int64_t n) {
  Generator random{.seed = 2};
  std::vector<int64_t> values(static_cast<size_t>(rows));
  for (int64_t& v : values) v = static_cast<int64_t>(random.below(static_cast<uint64_t>(n)));
  return Tensor::from<int64_t>({rows}, values);
}

Backend& cpu() { return backend(Device{}); }

void count_flops(State& state, double flops) {
  state.counters["FLOP/s"] = Counter(flops, Counter::kIsIterationInvariantRate, Counter::kIs1000);
}

void count_items(State& state, int64_t items) { state.SetItemsProcessed(state.iterations() * items); }

// ---- The head: B rows of a chunk

void head_product(State& state, double beta, const Tensor& a, const Tensor& b, Tensor y) {
  for (auto _ : state) cpu().matmul(1, a, b, beta, y);
  count_flops(state, 2.0 * static_cast<double>(state.range(0)) * kFeatures * kClasses);
}

void matmul_logits(State& state) {  // (B, F)·(F, C)
  const int64_t B = state.range(0);
  head_product(state, 0, normal({B, kFeatures}), transpose(normal({kClasses, kFeatures}), 0, 1),
               Tensor({B, kClasses}, DType::f32));
}

void matmul_grad_input(State& state) {  // (B, C)·(C, F)
  const int64_t B = state.range(0);
  head_product(state, 0, normal({B, kClasses}), normal({kClasses, kFeatures}),
               Tensor({B, kFeatures}, DType::f32));
}

void matmul_grad_weight(State& state) {  // += (C, B)·(B, F)
  const int64_t B = state.range(0);
  head_product(state, 1, transpose(normal({B, kClasses}), 0, 1), normal({B, kFeatures}),
               Tensor::zeros({kClasses, kFeatures}, DType::f32));
}

void cross_entropy_rows(State& state) {
  const int64_t B = state.range(0);
  CrossEntropyRows rows;
  rows.logits = normal({B, kClasses});
  rows.target_index = indices(B, kClasses);
  rows.row_scale = Tensor::full({B}, 1.0 / static_cast<double>(B), DType::f64);
  rows.loss = Tensor({B}, DType::f64);
  rows.gradient = Tensor({B, kClasses}, DType::f32);
  for (auto _ : state) cpu().cross_entropy_rows(rows);
  count_items(state, rows.logits.numel());
}

// ---- The blocks

void linear_mlp_in(State& state) {  // (N, F)·(F, 4F)
  const Tensor x = normal({kRows, kFeatures}), weight = normal({kFeatures, 4 * kFeatures});
  Tensor y({kRows, 4 * kFeatures}, DType::f32);
  for (auto _ : state) cpu().matmul(1, x, weight, 0, y);
  count_flops(state, 2.0 * kRows * kFeatures * 4 * kFeatures);
}

void softmax(State& state, bool log) {
  const Tensor x = normal({kRows, state.range(0)});
  Tensor y(x.shape(), DType::f32);
  for (auto _ : state) cpu().softmax(x, log, y);
  count_items(state, x.numel());
}

void layer_norm(State& state) {
  const Tensor x = normal({kRows, kFeatures}), weight = normal({kFeatures}), bias = normal({kFeatures});
  Tensor y(x.shape(), DType::f32), mean({kRows}, DType::f32), rstd({kRows}, DType::f32);
  for (auto _ : state) cpu().layer_norm(x, weight, bias, 1e-5, y, mean, rstd);
  count_items(state, x.numel());
}

void layer_norm_backward(State& state) {
  const Tensor x = normal({kRows, kFeatures}), weight = normal({kFeatures}), bias = normal({kFeatures}),
               gy = normal(x.shape());
  Tensor y(x.shape(), DType::f32), mean({kRows}, DType::f32), rstd({kRows}, DType::f32);
  cpu().layer_norm(x, weight, bias, 1e-5, y, mean, rstd);
  Tensor gx(x.shape(), DType::f32), gweight({kFeatures}, DType::f32), gbias({kFeatures}, DType::f32);
  for (auto _ : state) cpu().layer_norm_backward(x, weight, mean, rstd, gy, gx, gweight, gbias);
  count_items(state, x.numel());
}

void unary(State& state, Unary op) {
  Tensor x = normal({kRows, 4 * kFeatures});
  if (op == Unary::log) cpu().unary(Unary::exp, x, x);  // positive
  Tensor y(x.shape(), DType::f32);
  for (auto _ : state) cpu().unary(op, x, y);
  count_items(state, x.numel());
}

void gelu_tanh_backward(State& state) {
  const Tensor x = normal({kRows, 4 * kFeatures}), gy = normal(x.shape());
  Tensor gx(x.shape(), DType::f32);
  for (auto _ : state) cpu().unary_backward(Unary::gelu_tanh, x, gy, gx);
  count_items(state, x.numel());
}

void dropout(State& state) {
  const Tensor x = normal({kRows, kFeatures});
  Tensor y(x.shape(), DType::f32);
  for (auto _ : state) cpu().dropout(x, 0.1, 1, 0, y);
  count_items(state, x.numel());
}

// Queries, keys and values as the model has them: heads of packed rows.
Attention attention_arguments(int64_t positions) {
  const Tensor qkv = permute(
      reshape(normal({kBatch, positions, 3 * kHeads * kWidth}), {kBatch, positions, 3, kHeads, kWidth}),
      {2, 0, 3, 1, 4});
  return {.q = select(qkv, 0, 0),
          .k = select(qkv, 0, 1),
          .v = select(qkv, 0, 2),
          .scale = 1 / std::sqrt(double{kWidth})};
}

// Of q·kᵀ and p·v, the causal half.
double attention_flops(int64_t positions) {
  return 2.0 * kBatch * kHeads * static_cast<double>(positions * positions) * kWidth;
}

void attention(State& state) {
  const int64_t T = state.range(0);
  const Attention args = attention_arguments(T);
  Tensor y({kBatch, kHeads, T, kWidth}, DType::f32), lse({kBatch, kHeads, T}, DType::f32);
  for (auto _ : state) cpu().attention(args, y, lse);
  count_flops(state, attention_flops(T));
}

void attention_backward(State& state) {
  const int64_t T = state.range(0);
  const Attention args = attention_arguments(T);
  const Shape shape = {kBatch, kHeads, T, kWidth};
  const Tensor gy = normal(shape);
  Tensor y(shape, DType::f32), lse({kBatch, kHeads, T}, DType::f32);
  cpu().attention(args, y, lse);
  Tensor gq(shape, DType::f32), gk(shape, DType::f32), gv(shape, DType::f32);
  for (auto _ : state) cpu().attention_backward(args, y, lse, gy, gq, gk, gv);
  count_flops(state, 2 * attention_flops(T));
}

// ---- Tables and training

void embedding_backward(State& state) {
  const Tensor ids = indices(kRows, kClasses), gy = normal({kRows, kFeatures});
  Tensor table = Tensor::zeros({kClasses, kFeatures}, DType::f32);
  for (auto _ : state) cpu().scatter_add_rows(gy, ids, {}, table);
  count_items(state, gy.numel());
}

void adamw(State& state) {
  const Shape shape = {kClasses, kFeatures};
  std::vector<Tensor> p = {normal(shape)}, m = {Tensor::zeros(shape, DType::f32)},
                      v = {Tensor::zeros(shape, DType::f32)};
  const std::vector<Tensor> g = {normal(shape)};
  AdamW numbers{
      .learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .step = 0};
  for (auto _ : state) {
    ++numbers.step;
    cpu().adamw(numbers, p, g, m, v, {});
  }
  count_items(state, shape.numel());
}

void squared_norm(State& state) {
  const std::vector<Tensor> g = {normal({kClasses, kFeatures})};
  Tensor y({}, DType::f64);
  for (auto _ : state) cpu().squared_norm(g, y);
  count_items(state, g[0].numel());
}

// Real time: the kernels' threads are not the one that measures.
void chunks(benchmark::internal::Benchmark* b) {
  b->ArgName("rows")->Arg(16)->Arg(64)->Arg(128)->Arg(256)->Arg(512)->UseRealTime();
}
void contexts(benchmark::internal::Benchmark* b) {
  b->ArgName("T")->Arg(64)->Arg(128)->Arg(1024)->UseRealTime();
}
void classes(benchmark::internal::Benchmark* b) { b->ArgName("C")->Arg(64)->Arg(kClasses)->UseRealTime(); }

BENCHMARK(matmul_logits)->Apply(chunks);
BENCHMARK(matmul_grad_input)->Apply(chunks);
BENCHMARK(matmul_grad_weight)->Apply(chunks);
BENCHMARK(cross_entropy_rows)->Apply(chunks);
BENCHMARK(linear_mlp_in)->UseRealTime();
BENCHMARK_CAPTURE(softmax, plain, false)->Apply(classes);
BENCHMARK_CAPTURE(softmax, log, true)->Apply(classes);
BENCHMARK(layer_norm)->UseRealTime();
BENCHMARK(layer_norm_backward)->UseRealTime();
BENCHMARK_CAPTURE(unary, gelu_tanh, Unary::gelu_tanh)->UseRealTime();
BENCHMARK_CAPTURE(unary, log, Unary::log)->UseRealTime();
BENCHMARK(gelu_tanh_backward)->UseRealTime();
BENCHMARK(dropout)->UseRealTime();
BENCHMARK(attention)->Apply(contexts);
BENCHMARK(attention_backward)->Apply(contexts);
BENCHMARK(embedding_backward)->UseRealTime();
BENCHMARK(adamw)->UseRealTime();
BENCHMARK(squared_norm)->UseRealTime();

}  // namespace
}  // namespace tapehead

BENCHMARK_MAIN();
