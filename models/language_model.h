// A decoder-only language model: what training, evaluation and generation need of one,
// whatever its architecture.
//
// Shape letters: B sequences, T positions, F width, C vocabulary.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tapehead/core/random.h"
#include "tapehead/models/module.h"

namespace tapehead {

class KeyValueCache;            // models/key_value_cache.h
struct LinearCrossEntropyArgs;  // ops/linear_cross_entropy.h

/// How the frequencies of rotary positions are changed for contexts longer than those
/// that a model learnt them on: a config.json's rope_scaling, under its names.
struct RopeScaling {
  /// "default": as they are; "linear": divided by factor; "llama3": only the slow ones, smoothly.
  std::string type = "default";
  double factor = 1;
  // Of llama3 alone: frequencies that turn less than low_freq_factor times in the original
  // context are divided by factor, those that turn more than high_freq_factor times stay.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;

  bool operator==(const RopeScaling&) const = default;
};

/// What an architecture leaves open, under the names of Hugging Face's GPT-2 or, where
/// that has none, Llama. The defaults are the model that tools/quickstart trains.
struct ModelConfig {
  std::string architecture = "gpt2";  ///< or "llama"
  int64_t vocab_size = 8192;
  int64_t n_layer = 4;
  int64_t n_head = 4;
  int64_t n_embd = 256;
  int64_t n_positions = 128;  ///< the context: how many tokens the model sees at once
  int64_t n_inner = 0;        ///< width of the MLP; 0: inner() says
  double dropout = 0;         ///< of the embeddings and of every branch before it joins the residual stream
  double norm_epsilon = 1e-5;

  // Of a Llama alone. A GPT-2 has these values.
  int64_t n_kv_head = 0;  ///< heads of keys and values, each read by n_head / n_kv_head of queries; 0: n_head
  int64_t head_dim = 0;   ///< width of a head; 0: n_embd / n_head
  double rope_theta = 10000;
  RopeScaling rope_scaling = {};
  bool tied_head = true;            ///< whether the head is the token embeddings
  bool attention_bias = false;      ///< of the projections to queries, keys and values (Qwen2's are true)
  bool attention_out_bias = false;  ///< of the projection out of attention (Llama's attention_bias is both)
  bool mlp_bias = false;

  bool operator==(const ModelConfig&) const = default;

  /// The width of the MLP: n_inner, or 4 · n_embd in a GPT-2, and in a Llama 8/3 · n_embd
  /// rounded up to a multiple of 32.
  int64_t inner() const;
  int64_t kv_heads() const { return n_kv_head > 0 ? n_kv_head : n_head; }
  int64_t head_width() const { return head_dim > 0 ? head_dim : n_embd / n_head; }

  /// Throws ValueError that names the field, its value and the rule. Sizes are at most 2^31 - 1.
  void validate() const;
};

/// What a pass through a model may be asked for.
struct ForwardArgs {
  Generator* dropout = nullptr;  ///< numbers for dropout, which happens only where they are given
  /// (B, T) i64: the first position that each position sees, at most its own, as in
  /// scaled_dot_product_attention: where its document begins. Undefined: 0.
  Tensor first_seen = {};
  /// Keeps keys and values: ids are what follows the positions that it holds. Without gradients.
  KeyValueCache* cache = nullptr;
  /// Keeps nothing of a block but its input for backward, which runs the block again
  /// (core/rematerialize.h): the same numbers, for a third more time.
  bool recompute = false;
};

class LanguageModel {
 public:
  virtual ~LanguageModel() = default;

  const ModelConfig& config() const { return config_; }
  DType dtype() const { return embedding_.dtype(); }
  Device device() const { return embedding_.device(); }

  /// Under Hugging Face's names (transformer.wte.weight, model.embed_tokens.weight, ...).
  /// A tied head has no entry of its own.
  const ParameterList& parameters() const { return parameters_; }
  /// How many numbers the parameters hold.
  int64_t parameter_count() const;

  /// ids (B, T) i64, T <= n_positions -> (B, T, F), after the last norm. ids, and
  /// args.first_seen, may be on any device: the model's own gets a copy. Throws ValueError
  /// on shapes, on an id outside the vocabulary, and if args.cache has no room.
  Tensor hidden(const Tensor& ids, const ForwardArgs& args = {}) const;

  /// The weight of the head, (C, F): the token embeddings, if it is tied to them.
  const Tensor& head_weight() const { return head_; }
  /// The head: hidden states (..., F) -> logits (..., C).
  Tensor head(const Tensor& hidden) const;
  /// ids (B, T) -> logits (B, T, C).
  Tensor logits(const Tensor& ids) const { return head(hidden(ids)); }

  /// The loss of predicting `targets` (B, T) i64, already shifted, from ids (B, T), both
  /// on any device, through linear_cross_entropy: `head` holds its own arguments
  /// (reduction, ignore_index, normalizer, options); head.bias is not used. Memory of the
  /// head is counted in the scope "head".
  Tensor loss(const Tensor& ids, const Tensor& targets, const LinearCrossEntropyArgs& head,
              const ForwardArgs& args = {}) const;

 protected:
  /// Throws what config.validate() does.
  explicit LanguageModel(ModelConfig config);
  // Models are copied as what they are, never as this alone; copies share parameters.
  LanguageModel(const LanguageModel&) = default;
  LanguageModel& operator=(const LanguageModel&) = default;

  /// hidden() of ids (B, T) that stand at the positions `first` to first + T - 1 and,
  /// like args.first_seen, on the model's device.
  virtual Tensor forward(const Tensor& ids, int64_t first, const ForwardArgs& args) const = 0;

  using BlockFunction = std::function<Tensor(const Tensor& x, const ForwardArgs& args)>;
  /// block(x, args), kept for backward or, with args.recompute, run again there.
  /// `parameters` are all that it reads; it owns what it captures.
  static Tensor run_block(const BlockFunction& block, const ParameterList& parameters, const Tensor& x,
                          const ForwardArgs& args);
  /// x through all blocks, each by run_block(): run(block, i, x, args) is what block i does, and owns what
  /// it captures.
  template <class Block, class Run>
  static Tensor run_blocks(const std::vector<Block>& blocks, Tensor x, const ForwardArgs& args,
                           const Run& run) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      ParameterList parameters;
      blocks[i].name_parameters("", parameters);
      const auto block = [block = blocks[i], run, i](const Tensor& in, const ForwardArgs& a) {
        return run(block, i, in, a);
      };
      x = run_block(block, parameters, x, args);
    }
    return x;
  }

  ModelConfig config_;
  // Set by the architecture.
  Tensor embedding_;  // (C, F)
  Tensor head_;       // (C, F): `embedding_` itself, or a parameter of its own
  ParameterList parameters_;
};

/// A model of config.architecture, initialised from `seed`. Throws ValueError on an invalid config.
std::unique_ptr<LanguageModel> make_model(const ModelConfig& config, uint64_t seed = 0,
                                          DType dtype = DType::f32, Device device = default_device());
/// One whose parameters `make` makes.
std::unique_ptr<LanguageModel> make_model(const ModelConfig& config, const Initializer& make);

}  // namespace tapehead
