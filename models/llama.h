// Llama (Touvron et al., "LLaMA: open and efficient foundation language models", 2023) and
// its kin, SmolLM and Qwen2: pre-norm blocks of causal grouped-query attention with rotary
// positions and a SwiGLU MLP, RMS norms, the head tied to the token embeddings or not.
#pragma once

#include <vector>

#include "tapehead/models/language_model.h"
#include "tapehead/ops/rotary.h"

namespace tapehead {

class Llama final : public LanguageModel {
 public:
  /// Weights are normal of deviation 0.02, in the projections onto the residual stream 0.02
  /// / sqrt(2·n_layer), as GPT's; biases 0; norms 1. Throws ValueError on an invalid config.
  explicit Llama(const ModelConfig& config, uint64_t seed = 0, DType dtype = DType::f32,
                 Device device = default_device())
      : Llama(config, Initializer{.generator = {.seed = seed}, .dtype = dtype, .device = device}) {}
  Llama(const ModelConfig& config, Initializer make);

 private:
  struct Block {
    RMSNorm input_norm;
    Linear q, k, v;  // F -> H·D, G·D, G·D
    Linear o;        // H·D -> F
    RMSNorm post_attention_norm;
    Linear gate, up;  // F -> n_inner
    Linear down;      // n_inner -> F

    /// The `layer`-th of the model, for positions from `first` on: (B, T, F) -> (B, T, F).
    Tensor forward(const ModelConfig& config, size_t layer, const RotaryTable& positions, int64_t first,
                   const Tensor& x, const ForwardArgs& args) const;
    void name_parameters(const std::string& prefix, ParameterList& list) const;
  };

  Tensor forward(const Tensor& ids, int64_t first, const ForwardArgs& args) const override;

  std::vector<Block> blocks_;
  RMSNorm norm_;
  RotaryTable positions_;  // n_positions
};

}  // namespace tapehead
