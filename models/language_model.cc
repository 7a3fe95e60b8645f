#include "tapehead/models/language_model.h"

#include "tapehead/core/memory.h"
#include "tapehead/core/view.h"
#include "tapehead/models/gpt.h"
#include "tapehead/ops/linear_cross_entropy.h"
#include "tapehead/ops/matmul.h"

namespace tapehead {

void ModelConfig::validate() const {
  check<ValueError>(architecture == "gpt2", "[model] architecture is {}: it is gpt2", architecture);
  const auto positive = [](int64_t value, const char* field) {
    check<ValueError>(value >= 1, "[model] {} is {}: it must be at least 1", field, value);
  };
  positive(vocab_size, "vocab_size");
  positive(n_layer, "n_layer");
  positive(n_head, "n_head");
  positive(n_embd, "n_embd");
  positive(n_positions, "n_positions");
  check<ValueError>(n_embd % n_head == 0,
                    "[model] n_embd is {} and n_head {}: n_embd must be a multiple of n_head", n_embd,
                    n_head);
  check<ValueError>(dropout >= 0 && dropout < 1, "[model] dropout is {}: it must be in [0, 1)", dropout);
  check<ValueError>(norm_epsilon > 0, "[model] norm_epsilon is {}: it must be positive", norm_epsilon);
}

LanguageModel::LanguageModel(ModelConfig config) : config_(std::move(config)) { config_.validate(); }

int64_t LanguageModel::parameter_count() const {
  int64_t count = 0;
  for (const auto& [name, tensor] : parameters_) count += tensor.numel();
  return count;
}

void LanguageModel::check_ids(const Tensor& ids) const {
  check<ValueError>(ids.dim() == 2 && ids.size(1) <= config_.n_positions,
                    "[{}] ids of shape {}: they must be (B, T) with T at most n_positions, {}",
                    config_.architecture, ids.shape(), config_.n_positions);
}

Tensor LanguageModel::head(const Tensor& hidden) const { return linear(hidden, head_); }

Tensor LanguageModel::loss(const Tensor& ids, const Tensor& targets, const LinearCrossEntropyArgs& head,
                           const ForwardArgs& args) const {
  check<ValueError>(ids.shape() == targets.shape(),
                    "[{}] ids of shape {} and targets of shape {}: they must agree", config_.architecture,
                    ids.shape(), targets.shape());
  const Tensor rows = reshape(hidden(ids, args), {ids.numel(), config_.n_embd});
  const MemoryScope scope("head");
  return linear_cross_entropy(rows, head_, reshape(targets, {targets.numel()}), head);
}

std::unique_ptr<LanguageModel> make_model(const ModelConfig& config, uint64_t seed, DType dtype,
                                          Device device) {
  config.validate();
  return std::make_unique<GPT>(config, seed, dtype, device);
}

}  // namespace tapehead
