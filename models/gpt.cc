#include "tapehead/models/gpt.h"

#include <cmath>

#include "tapehead/core/memory.h"
#include "tapehead/core/view.h"
#include "tapehead/ops/attention.h"
#include "tapehead/ops/dropout.h"
#include "tapehead/ops/elementwise.h"
#include "tapehead/ops/embedding.h"
#include "tapehead/ops/linear_cross_entropy.h"
#include "tapehead/ops/matmul.h"
#include "tapehead/ops/random.h"

namespace tapehead {

void GPTConfig::validate() const {
  const auto positive = [](int64_t value, const char* field) {
    check<ValueError>(value >= 1, "[gpt] {} is {}: it must be at least 1", field, value);
  };
  positive(vocab_size, "vocab_size");
  positive(n_layer, "n_layer");
  positive(n_head, "n_head");
  positive(n_embd, "n_embd");
  positive(n_positions, "n_positions");
  check<ValueError>(n_embd % n_head == 0,
                    "[gpt] n_embd is {} and n_head {}: n_embd must be a multiple of n_head", n_embd, n_head);
  check<ValueError>(dropout >= 0 && dropout < 1, "[gpt] dropout is {}: it must be in [0, 1)", dropout);
  check<ValueError>(layer_norm_epsilon > 0, "[gpt] layer_norm_epsilon is {}: it must be positive",
                    layer_norm_epsilon);
}

// ---- Initialisation

GPT::GPT(const GPTConfig& config, uint64_t seed, DType dtype, Device device) : config_(config) {
  config_.validate();
  const int64_t F = config_.n_embd;
  constexpr double kDeviation = 0.02;
  const double residual_deviation = kDeviation / std::sqrt(2.0 * static_cast<double>(config_.n_layer));

  Generator generator{.seed = seed};
  const auto leaf = [](Tensor tensor) { return tensor.set_requires_grad(); };
  const auto matrix = [&](int64_t rows, int64_t columns, double deviation) {
    return leaf(random_normal({rows, columns}, 0, deviation, generator, dtype, device));
  };
  const auto vector = [&](int64_t size, double value) {
    return leaf(Tensor::full({size}, value, dtype, device));
  };
  const auto projection = [&](int64_t in, int64_t out, double deviation) {
    return Conv1D{.weight = matrix(in, out, deviation), .bias = vector(out, 0)};
  };
  const auto norm = [&] {
    return LayerNorm{.weight = vector(F, 1), .bias = vector(F, 0), .epsilon = config_.layer_norm_epsilon};
  };

  wte_ = matrix(config_.vocab_size, F, kDeviation);
  wpe_ = matrix(config_.n_positions, F, kDeviation);
  parameters_ = {{"transformer.wte.weight", wte_}, {"transformer.wpe.weight", wpe_}};
  for (int64_t i = 0; i < config_.n_layer; ++i) {
    const Block block{.ln_1 = norm(),
                      .attention_in = projection(F, 3 * F, kDeviation),
                      .attention_out = projection(F, F, residual_deviation),
                      .ln_2 = norm(),
                      .mlp_in = projection(F, 4 * F, kDeviation),
                      .mlp_out = projection(4 * F, F, residual_deviation)};
    const std::string prefix = fmt::format("transformer.h.{}.", i);
    block.ln_1.name_parameters(prefix + "ln_1.", parameters_);
    block.attention_in.name_parameters(prefix + "attn.c_attn.", parameters_);
    block.attention_out.name_parameters(prefix + "attn.c_proj.", parameters_);
    block.ln_2.name_parameters(prefix + "ln_2.", parameters_);
    block.mlp_in.name_parameters(prefix + "mlp.c_fc.", parameters_);
    block.mlp_out.name_parameters(prefix + "mlp.c_proj.", parameters_);
    blocks_.push_back(block);
  }
  ln_f_ = norm();
  ln_f_.name_parameters("transformer.ln_f.", parameters_);
}

int64_t GPT::parameter_count() const {
  int64_t count = 0;
  for (const auto& [name, tensor] : parameters_) count += tensor.numel();
  return count;
}

// ---- Forward

Tensor GPT::hidden(const Tensor& ids, Generator* dropout_numbers) const {
  check<ValueError>(ids.dim() == 2 && ids.size(1) <= config_.n_positions,
                    "[gpt] ids of shape {}: they must be (B, T) with T at most n_positions, {}", ids.shape(),
                    config_.n_positions);
  const auto drop = [&](const Tensor& x) {
    return dropout_numbers && config_.dropout > 0 ? dropout(x, config_.dropout, *dropout_numbers) : x;
  };
  Tensor x = drop(embedding(wte_, ids) + slice(wpe_, 0, 0, ids.size(1)));
  for (const Block& block : blocks_) {
    const Tensor qkv = block.attention_in(block.ln_1(x));
    x = x + drop(block.attention_out(causal_self_attention(qkv, config_.n_head)));
    x = x + drop(block.mlp_out(gelu_tanh(block.mlp_in(block.ln_2(x)))));
  }
  return ln_f_(x);
}

Tensor GPT::head(const Tensor& hidden) const { return linear(hidden, wte_); }

Tensor GPT::loss(const Tensor& ids, const Tensor& targets, const LinearCrossEntropyArgs& args,
                 Generator* dropout_numbers) const {
  check<ValueError>(ids.shape() == targets.shape(),
                    "[gpt] ids of shape {} and targets of shape {}: they must agree", ids.shape(),
                    targets.shape());
  const Tensor rows = reshape(hidden(ids, dropout_numbers), {ids.numel(), config_.n_embd});
  const MemoryScope scope("head");
  return linear_cross_entropy(rows, wte_, reshape(targets, {targets.numel()}), args);
}

}  // namespace tapehead
