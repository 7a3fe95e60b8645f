#include "tapehead/models/gpt.h"

#include <cmath>

#include "tapehead/core/view.h"
#include "tapehead/models/key_value_cache.h"
#include "tapehead/ops/attention.h"
#include "tapehead/ops/elementwise.h"
#include "tapehead/ops/embedding.h"

namespace tapehead {

// ---- Initialisation

GPT::GPT(const ModelConfig& config, Initializer make) : LanguageModel(config) {
  const int64_t F = config_.n_embd, inner = config_.inner();
  constexpr double kDeviation = 0.02;
  const double residual_deviation = kDeviation / std::sqrt(2.0 * static_cast<double>(config_.n_layer));

  const auto projection = [&](int64_t in, int64_t out, double deviation) {
    return Conv1D{.weight = make.matrix(in, out, deviation), .bias = make.vector(out, 0)};
  };
  const auto norm = [&] {
    return LayerNorm{.weight = make.vector(F, 1), .bias = make.vector(F, 0), .epsilon = config_.norm_epsilon};
  };

  embedding_ = head_ = make.matrix(config_.vocab_size, F, kDeviation);
  wpe_ = make.matrix(config_.n_positions, F, kDeviation);
  parameters_ = {{"transformer.wte.weight", embedding_}, {"transformer.wpe.weight", wpe_}};
  for (int64_t i = 0; i < config_.n_layer; ++i) {
    const Block block{.ln_1 = norm(),
                      .attention_in = projection(F, 3 * F, kDeviation),
                      .attention_out = projection(F, F, residual_deviation),
                      .ln_2 = norm(),
                      .mlp_in = projection(F, inner, kDeviation),
                      .mlp_out = projection(inner, F, residual_deviation)};
    block.name_parameters(fmt::format("transformer.h.{}.", i), parameters_);
    blocks_.push_back(block);
  }
  ln_f_ = norm();
  ln_f_.name_parameters("transformer.ln_f.", parameters_);
}

void GPT::Block::name_parameters(const std::string& prefix, ParameterList& list) const {
  ln_1.name_parameters(prefix + "ln_1.", list);
  attention_in.name_parameters(prefix + "attn.c_attn.", list);
  attention_out.name_parameters(prefix + "attn.c_proj.", list);
  ln_2.name_parameters(prefix + "ln_2.", list);
  mlp_in.name_parameters(prefix + "mlp.c_fc.", list);
  mlp_out.name_parameters(prefix + "mlp.c_proj.", list);
}

// ---- Forward

// As causal_self_attention, on queries that follow the positions in the cache.
static Tensor attend_with_cache(const Tensor& qkv, const ModelConfig& config, size_t layer,
                                const ForwardArgs& args) {
  const int64_t H = config.n_head, D = config.head_width();
  const auto [k, v] = args.cache->append(layer, split_heads(qkv, H, D, H), split_heads(qkv, H, D, 2 * H));
  return join_heads(scaled_dot_product_attention(split_heads(qkv, H, D), k, v, true, {}, args.first_seen));
}

Tensor GPT::Block::forward(const ModelConfig& config, size_t layer, const Tensor& x,
                           const ForwardArgs& args) const {
  const Tensor qkv = attention_in(ln_1(x));
  const Tensor seen = args.cache ? attend_with_cache(qkv, config, layer, args)
                                 : causal_self_attention(qkv, config.n_head, args.first_seen);
  const Tensor h = x + drop(attention_out(seen), config.dropout, args.dropout);
  return h + drop(mlp_out(gelu_tanh(mlp_in(ln_2(h)))), config.dropout, args.dropout);
}

Tensor GPT::forward(const Tensor& ids, int64_t first, const ForwardArgs& args) const {
  const Tensor x = drop(embedding(embedding_, ids) + slice(wpe_, 0, first, first + ids.size(1)),
                        config_.dropout, args.dropout);
  const auto run = [config = config_](const Block& block, size_t i, const Tensor& in, const ForwardArgs& a) {
    return block.forward(config, i, in, a);
  };
  return ln_f_(run_blocks(blocks_, x, args, run));
}

}  // namespace tapehead
