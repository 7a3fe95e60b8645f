// GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019): learned positions,
// layer norm before attention and MLP, gelu_tanh, and a head whose weight is the token embedding itself.
//
// Shape letters: B rows of a batch, T positions, F = n_embd, C = vocab_size.
#pragma once

#include "tapehead/core/random.h"
#include "tapehead/models/module.h"

namespace tapehead {

struct LinearCrossEntropyArgs;  // ops/linear_cross_entropy.h

/// Hugging Face's names. The defaults are the model that tools/quickstart trains.
struct GPTConfig {
  int64_t vocab_size = 8192;
  int64_t n_layer = 4;
  int64_t n_head = 4;
  int64_t n_embd = 256;
  int64_t n_positions = 128;  ///< the context: how many tokens the model sees at once
  double dropout = 0;         ///< of the embeddings and of every branch before it joins the residual stream
  double layer_norm_epsilon = 1e-5;

  bool operator==(const GPTConfig&) const = default;

  /// Throws ValueError that names the field, its value and the rule.
  void validate() const;
};

class GPT {
 public:
  /// GPT-2's initialisation: weights are normal of deviation 0.02, in the projections onto the residual
  /// stream 0.02 / sqrt(2·n_layer); biases 0; layer norms 1. Throws ValueError on an invalid config.
  explicit GPT(const GPTConfig& config, uint64_t seed = 0, DType dtype = DType::f32, Device device = {});

  const GPTConfig& config() const { return config_; }
  DType dtype() const { return wte_.dtype(); }
  Device device() const { return wte_.device(); }

  /// Under Hugging Face's names (transformer.wte.weight, ...). The tied head has no entry of its own.
  const ParameterList& parameters() const { return parameters_; }
  /// How many numbers the parameters hold.
  int64_t parameter_count() const;

  /// ids (B, T) i64, T <= n_positions -> (B, T, F), after the last layer norm. Dropout happens only where a
  /// generator is given. Throws ValueError on shapes and on an id outside the vocabulary.
  Tensor hidden(const Tensor& ids, Generator* dropout = nullptr) const;

  /// The head: hidden states (..., F) -> logits (..., C).
  Tensor head(const Tensor& hidden) const;
  /// ids (B, T) -> logits (B, T, C).
  Tensor logits(const Tensor& ids) const { return head(hidden(ids)); }

  /// The loss of predicting `targets` (B, T) i64, already shifted, from ids (B, T), through
  /// linear_cross_entropy: `args` are its own (reduction, ignore_index, normalizer, options); args.bias is
  /// not used. Memory of the head is counted in the scope "head".
  Tensor loss(const Tensor& ids, const Tensor& targets, const LinearCrossEntropyArgs& args,
              Generator* dropout = nullptr) const;

 private:
  struct Block {
    LayerNorm ln_1;
    Conv1D attention_in;   // F -> 3F: queries, keys, values
    Conv1D attention_out;  // F -> F
    LayerNorm ln_2;
    Conv1D mlp_in;   // F -> 4F
    Conv1D mlp_out;  // 4F -> F
  };

  GPTConfig config_;
  Tensor wte_;  // (C, F): tokens, and the head
  Tensor wpe_;  // (n_positions, F)
  std::vector<Block> blocks_;
  LayerNorm ln_f_;
  ParameterList parameters_;
};

}  // namespace tapehead
