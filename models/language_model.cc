#include "tapehead/models/language_model.h"

#include <limits>

#include "tapehead/core/memory.h"
#include "tapehead/core/rematerialize.h"
#include "tapehead/core/view.h"
#include "tapehead/models/gpt.h"
#include "tapehead/models/key_value_cache.h"
#include "tapehead/models/llama.h"
#include "tapehead/ops/linear_cross_entropy.h"
#include "tapehead/ops/matmul.h"

namespace tapehead {

int64_t ModelConfig::inner() const {
  if (n_inner > 0) return n_inner;
  return architecture == "llama" ? (8 * n_embd / 3 + 31) / 32 * 32 : 4 * n_embd;
}

// What only a Llama leaves open stands as a GPT-2 has it.
static void check_gpt2(const ModelConfig& config) {
  const ModelConfig gpt2;
  const auto fixed = [](const auto& value, const auto& expected, const char* field) {
    check<ValueError>(value == expected, "[model] {} is {}: in a gpt2 it is {}", field, value, expected);
  };
  fixed(config.n_kv_head, gpt2.n_kv_head, "n_kv_head");
  fixed(config.head_dim, gpt2.head_dim, "head_dim");
  fixed(config.rope_theta, gpt2.rope_theta, "rope_theta");
  fixed(config.rope_scaling.type, gpt2.rope_scaling.type, "rope_scaling.type");
  fixed(config.tied_head, gpt2.tied_head, "tied_head");
  fixed(config.attention_bias, gpt2.attention_bias, "attention_bias");
  fixed(config.attention_out_bias, gpt2.attention_out_bias, "attention_out_bias");
  fixed(config.mlp_bias, gpt2.mlp_bias, "mlp_bias");
}

static void check_llama(const ModelConfig& config) {
  check<ValueError>(config.n_kv_head >= 0 && config.n_head % config.kv_heads() == 0,
                    "[model] n_kv_head is {} and n_head {}: n_kv_head must divide n_head", config.n_kv_head,
                    config.n_head);
  check<ValueError>(config.head_dim >= 0 && config.head_width() % 2 == 0,
                    "[model] the width of a head is {}: it must be even and positive, for rotary positions",
                    config.head_dim != 0 ? config.head_dim : config.head_width());
  check<ValueError>(config.rope_theta > 0, "[model] rope_theta is {}: it must be positive",
                    config.rope_theta);
  const RopeScaling& scaling = config.rope_scaling;
  check<ValueError>(scaling.type == "default" || scaling.type == "linear" || scaling.type == "llama3",
                    "[model] rope_scaling.type is {}: it is default, linear or llama3", scaling.type);
  check<ValueError>(scaling.factor > 0, "[model] rope_scaling.factor is {}: it must be positive",
                    scaling.factor);
  check<ValueError>(
      0 < scaling.low_freq_factor && scaling.low_freq_factor < scaling.high_freq_factor,
      "[model] rope_scaling.low_freq_factor is {} and high_freq_factor {}: the first must be positive and "
      "the smaller one",
      scaling.low_freq_factor, scaling.high_freq_factor);
  check<ValueError>(scaling.original_max_position_embeddings >= 1,
                    "[model] rope_scaling.original_max_position_embeddings is {}: it must be at least 1",
                    scaling.original_max_position_embeddings);
}

void ModelConfig::validate() const {
  check<ValueError>(architecture == "gpt2" || architecture == "llama",
                    "[model] architecture is {}: it is gpt2 or llama", architecture);
  // So that products of two sizes fit an int64.
  const auto bounded = [](int64_t value, const char* field) {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    check<ValueError>(value <= kMost, "[model] {} is {}: it must be at most {}", field, value, kMost);
  };
  const auto positive = [&](int64_t value, const char* field) {
    check<ValueError>(value >= 1, "[model] {} is {}: it must be at least 1", field, value);
    bounded(value, field);
  };
  positive(vocab_size, "vocab_size");
  positive(n_layer, "n_layer");
  positive(n_head, "n_head");
  positive(n_embd, "n_embd");
  positive(n_positions, "n_positions");
  bounded(n_inner, "n_inner");
  bounded(n_kv_head, "n_kv_head");
  bounded(head_dim, "head_dim");
  check<ValueError>(n_inner >= 0, "[model] n_inner is {}: it must be positive, or 0 for {}", n_inner,
                    architecture == "llama" ? "8/3 of n_embd" : "4 times n_embd");
  check<ValueError>(head_dim != 0 || n_embd % n_head == 0,
                    "[model] n_embd is {} and n_head {}: n_embd must be a multiple of n_head", n_embd,
                    n_head);
  check<ValueError>(dropout >= 0 && dropout < 1, "[model] dropout is {}: it must be in [0, 1)", dropout);
  check<ValueError>(norm_epsilon > 0, "[model] norm_epsilon is {}: it must be positive", norm_epsilon);
  architecture == "llama" ? check_llama(*this) : check_gpt2(*this);
}

LanguageModel::LanguageModel(ModelConfig config) : config_(std::move(config)) { config_.validate(); }

int64_t LanguageModel::parameter_count() const {
  int64_t count = 0;
  for (const auto& [name, tensor] : parameters_) count += tensor.numel();
  return count;
}

Tensor LanguageModel::hidden(const Tensor& ids, const ForwardArgs& args) const {
  check<ValueError>(ids.dim() == 2 && ids.size(1) <= config_.n_positions,
                    "[{}] ids of shape {}: they must be (B, T) with T at most n_positions, {}",
                    config_.architecture, ids.shape(), config_.n_positions);
  if (args.cache) args.cache->check_room(ids);
  ForwardArgs here = args;
  if (here.first_seen.defined()) here.first_seen = here.first_seen.to(device());
  const Tensor x = forward(ids.to(device()), args.cache ? args.cache->length() : 0, here);
  if (args.cache) args.cache->advance(ids.size(1));
  return x;
}

Tensor LanguageModel::run_block(const BlockFunction& block, const ParameterList& parameters, const Tensor& x,
                                const ForwardArgs& args) {
  if (!args.recompute) return block(x, args);
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : parameters) tensors.push_back(tensor);
  const auto again = [block, args](const Tensor& in, Generator* numbers) {
    ForwardArgs same = args;
    same.dropout = numbers;
    return block(in, same);
  };
  return rematerialize(again, x, tensors, args.dropout);
}

Tensor LanguageModel::head(const Tensor& hidden) const { return linear(hidden, head_); }

Tensor LanguageModel::loss(const Tensor& ids, const Tensor& targets, const LinearCrossEntropyArgs& head,
                           const ForwardArgs& args) const {
  check<ValueError>(ids.shape() == targets.shape(),
                    "[{}] ids of shape {} and targets of shape {}: they must agree", config_.architecture,
                    ids.shape(), targets.shape());
  const Tensor rows = reshape(hidden(ids, args), {ids.numel(), config_.n_embd});
  const MemoryScope scope("head");
  return linear_cross_entropy(rows, head_, reshape(targets.to(device()), {targets.numel()}), head);
}

std::unique_ptr<LanguageModel> make_model(const ModelConfig& config, uint64_t seed, DType dtype,
                                          Device device) {
  return make_model(config, {.generator = {.seed = seed}, .dtype = dtype, .device = device});
}

std::unique_ptr<LanguageModel> make_model(const ModelConfig& config, const Initializer& make) {
  config.validate();
  if (config.architecture == "llama") return std::make_unique<Llama>(config, make);
  return std::make_unique<GPT>(config, make);
}

}  // namespace tapehead
