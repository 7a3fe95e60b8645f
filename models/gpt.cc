#include "tapehead/models/gpt.h"

#include <cmath>

#include "tapehead/core/view.h"
#include "tapehead/ops/attention.h"
#include "tapehead/ops/dropout.h"
#include "tapehead/ops/elementwise.h"
#include "tapehead/ops/embedding.h"
#include "tapehead/ops/random.h"

namespace tapehead {

// ---- Initialisation

GPT::GPT(const ModelConfig& config, uint64_t seed, DType dtype, Device device) : LanguageModel(config) {
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
    return LayerNorm{.weight = vector(F, 1), .bias = vector(F, 0), .epsilon = config_.norm_epsilon};
  };

  embedding_ = head_ = matrix(config_.vocab_size, F, kDeviation);
  wpe_ = matrix(config_.n_positions, F, kDeviation);
  parameters_ = {{"transformer.wte.weight", embedding_}, {"transformer.wpe.weight", wpe_}};
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

// ---- Forward

Tensor GPT::hidden(const Tensor& ids, const ForwardArgs& args) const {
  check_ids(ids);
  const auto drop = [&](const Tensor& x) {
    return args.dropout && config_.dropout > 0 ? dropout(x, config_.dropout, *args.dropout) : x;
  };
  Tensor x = drop(embedding(embedding_, ids) + slice(wpe_, 0, 0, ids.size(1)));
  for (const Block& block : blocks_) {
    const Tensor qkv = block.attention_in(block.ln_1(x));
    x = x + drop(block.attention_out(causal_self_attention(qkv, config_.n_head)));
    x = x + drop(block.mlp_out(gelu_tanh(block.mlp_in(block.ln_2(x)))));
  }
  return ln_f_(x);
}

}  // namespace tapehead
