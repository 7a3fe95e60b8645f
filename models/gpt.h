// GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019): pre-norm blocks
// of causal self-attention and a gelu MLP, learnt positions, the head tied to the token embeddings.
#pragma once

#include <vector>

#include "tapehead/models/language_model.h"

namespace tapehead {

class GPT final : public LanguageModel {
 public:
  /// GPT-2's initialisation: weights are normal of deviation 0.02, in the projections onto the residual
  /// stream 0.02 / sqrt(2·n_layer); biases 0; layer norms 1. Throws ValueError on an invalid config.
  explicit GPT(const ModelConfig& config, uint64_t seed = 0, DType dtype = DType::f32,
               Device device = default_device())
      : GPT(config, Initializer{.generator = {.seed = seed}, .dtype = dtype, .device = device}) {}
  GPT(const ModelConfig& config, Initializer make);

 private:
  struct Block {
    LayerNorm ln_1;
    Conv1D attention_in;   // F -> 3F: queries, keys, values
    Conv1D attention_out;  // F -> F
    LayerNorm ln_2;
    Conv1D mlp_in;   // F -> n_inner
    Conv1D mlp_out;  // n_inner -> F

    /// The `layer`-th of the model: (B, T, F) -> (B, T, F).
    Tensor forward(const ModelConfig& config, size_t layer, const Tensor& x, const ForwardArgs& args) const;
    void name_parameters(const std::string& prefix, ParameterList& list) const;
  };

  Tensor forward(const Tensor& ids, int64_t first, const ForwardArgs& args) const override;

  Tensor wpe_;  // (n_positions, F)
  std::vector<Block> blocks_;
  LayerNorm ln_f_;
};

}  // namespace tapehead
