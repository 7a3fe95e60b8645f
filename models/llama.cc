#include "tapehead/models/llama.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <tuple>

#include "tapehead/models/key_value_cache.h"
#include "tapehead/ops/attention.h"
#include "tapehead/ops/elementwise.h"
#include "tapehead/ops/embedding.h"

namespace tapehead {

// ---- Positions

// What llama3 makes of a frequency (Dubey et al., "The Llama 3 herd of models", 2024, and
// the code published with it).
static float llama3_frequency(float frequency, const RopeScaling& scaling) {
  const double turns = static_cast<double>(scaling.original_max_position_embeddings) *
                       static_cast<double>(frequency) / (2 * std::numbers::pi);
  const double kept = std::clamp(
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0.0, 1.0);
  return frequency * static_cast<float>(kept + (1 - kept) / scaling.factor);
}

// theta^(-2i/D) for i < D/2, scaled; in f32, as Hugging Face's Llama computes them.
static std::vector<float> rotary_frequencies(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  std::vector<float> frequencies;
  for (int64_t i = 0; i < config.head_width(); i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(config.head_width());
    float frequency = 1 / std::pow(static_cast<float>(config.rope_theta), exponent);
    if (scaling.type == "linear") frequency /= static_cast<float>(scaling.factor);
    if (scaling.type == "llama3") frequency = llama3_frequency(frequency, scaling);
    frequencies.push_back(frequency);
  }
  return frequencies;
}

// ---- Initialisation

Llama::Llama(const ModelConfig& config, Initializer make) : LanguageModel(config) {
  const int64_t F = config_.n_embd, D = config_.head_width(), inner = config_.inner();
  const int64_t queries = config_.n_head * D, keys = config_.kv_heads() * D;
  constexpr double kDeviation = 0.02;
  const double residual_deviation = kDeviation / std::sqrt(2.0 * static_cast<double>(config_.n_layer));

  const auto projection = [&](int64_t in, int64_t out, double deviation, bool bias) {
    return Linear{.weight = make.matrix(out, in, deviation), .bias = bias ? make.vector(out, 0) : Tensor()};
  };
  const auto norm = [&] { return RMSNorm{.weight = make.vector(F, 1), .epsilon = config_.norm_epsilon}; };

  embedding_ = make.matrix(config_.vocab_size, F, kDeviation);
  parameters_ = {{"model.embed_tokens.weight", embedding_}};
  for (int64_t i = 0; i < config_.n_layer; ++i) {
    const Block block{.input_norm = norm(),
                      .q = projection(F, queries, kDeviation, config_.attention_bias),
                      .k = projection(F, keys, kDeviation, config_.attention_bias),
                      .v = projection(F, keys, kDeviation, config_.attention_bias),
                      .o = projection(queries, F, residual_deviation, config_.attention_out_bias),
                      .post_attention_norm = norm(),
                      .gate = projection(F, inner, kDeviation, config_.mlp_bias),
                      .up = projection(F, inner, kDeviation, config_.mlp_bias),
                      .down = projection(inner, F, residual_deviation, config_.mlp_bias)};
    block.name_parameters(fmt::format("model.layers.{}.", i), parameters_);
    blocks_.push_back(block);
  }
  norm_ = norm();
  norm_.name_parameters("model.norm.", parameters_);
  head_ = embedding_;
  if (!config_.tied_head) {
    head_ = make.matrix(config_.vocab_size, F, kDeviation);
    parameters_.emplace_back("lm_head.weight", head_);
  }
  positions_ = rotary_table(config_.n_positions, rotary_frequencies(config_), make.dtype, make.device);
}

void Llama::Block::name_parameters(const std::string& prefix, ParameterList& list) const {
  input_norm.name_parameters(prefix + "input_layernorm.", list);
  q.name_parameters(prefix + "self_attn.q_proj.", list);
  k.name_parameters(prefix + "self_attn.k_proj.", list);
  v.name_parameters(prefix + "self_attn.v_proj.", list);
  o.name_parameters(prefix + "self_attn.o_proj.", list);
  post_attention_norm.name_parameters(prefix + "post_attention_layernorm.", list);
  gate.name_parameters(prefix + "mlp.gate_proj.", list);
  up.name_parameters(prefix + "mlp.up_proj.", list);
  down.name_parameters(prefix + "mlp.down_proj.", list);
}

// ---- Forward

Tensor Llama::Block::forward(const ModelConfig& config, size_t layer, const RotaryTable& positions,
                             int64_t first, const Tensor& x, const ForwardArgs& args) const {
  const int64_t D = config.head_width();
  const Tensor normal = input_norm(x);
  const Tensor queries = rotary(split_heads(q(normal), config.n_head, D), positions, first);
  Tensor keys = rotary(split_heads(k(normal), config.kv_heads(), D), positions, first);
  Tensor values = split_heads(v(normal), config.kv_heads(), D);
  if (args.cache) std::tie(keys, values) = args.cache->append(layer, keys, values);
  const Tensor seen = scaled_dot_product_attention(queries, keys, values, true, {}, args.first_seen);
  const Tensor h = x + drop(o(join_heads(seen)), config.dropout, args.dropout);
  const Tensor inner = post_attention_norm(h);
  return h + drop(down(silu(gate(inner)) * up(inner)), config.dropout, args.dropout);
}

Tensor Llama::forward(const Tensor& ids, int64_t first, const ForwardArgs& args) const {
  const Tensor x = drop(embedding(embedding_, ids), config_.dropout, args.dropout);
  const auto run = [config = config_, positions = positions_, first](const Block& block, size_t i,
                                                                     const Tensor& in, const ForwardArgs& a) {
    return block.forward(config, i, positions, first, in, a);
  };
  return norm_(run_blocks(blocks_, x, args, run));
}

}  // namespace tapehead
