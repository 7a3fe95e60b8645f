// A decoder-only language model: what training, evaluation and generation need of one, whatever its architecture.
//
// Shape letters: B sequences, T positions, F width, C vocabulary.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "tapehead/core/random.h"
#include "tapehead/models/module.h"

namespace tapehead {

struct LinearCrossEntropyArgs;  // ops/linear_cross_entropy.h

/// What an architecture leaves open, under the names of Hugging Face's GPT-2. The defaults are the model that
/// tools/quickstart trains.
struct ModelConfig {
  std::string architecture = "gpt2";
  int64_t vocab_size = 8192;
  int64_t n_layer = 4;
  int64_t n_head = 4;
  int64_t n_embd = 256;
  int64_t n_positions = 128;  ///< the context: how many tokens the model sees at once
  double dropout = 0;         ///< of the embeddings and of every branch before it joins the residual stream
  double norm_epsilon = 1e-5;

  bool operator==(const ModelConfig&) const = default;

  /// Throws ValueError that names the field, its value and the rule.
  void validate() const;
};

/// What a pass through a model may be asked for.
struct ForwardArgs {
  Generator* dropout = nullptr;  ///< numbers for dropout, which happens only where they are given
};

class LanguageModel {
 public:
  virtual ~LanguageModel() = default;

  const ModelConfig& config() const { return config_; }
  DType dtype() const { return embedding_.dtype(); }
  Device device() const { return embedding_.device(); }

  /// Under Hugging Face's names (transformer.wte.weight, ...). A tied head has no entry of its own.
  const ParameterList& parameters() const { return parameters_; }
  /// How many numbers the parameters hold.
  int64_t parameter_count() const;

  /// ids (B, T) i64, T <= n_positions -> (B, T, F), after the last norm. Throws ValueError on shapes and on an id
  /// outside the vocabulary.
  virtual Tensor hidden(const Tensor& ids, const ForwardArgs& args = {}) const = 0;

  /// The weight of the head, (C, F): the token embeddings, if it is tied to them.
  const Tensor& head_weight() const { return head_; }
  /// The head: hidden states (..., F) -> logits (..., C).
  Tensor head(const Tensor& hidden) const;
  /// ids (B, T) -> logits (B, T, C).
  Tensor logits(const Tensor& ids) const { return head(hidden(ids)); }

  /// The loss of predicting `targets` (B, T) i64, already shifted, from ids (B, T), through linear_cross_entropy: `head`
  /// holds its own arguments (reduction, ignore_index, normalizer, options); head.bias is not used. Memory of the head is
  /// counted in the scope "head".
  Tensor loss(const Tensor& ids, const Tensor& targets, const LinearCrossEntropyArgs& head,
              const ForwardArgs& args = {}) const;

 protected:
  /// Throws what config.validate() does.
  explicit LanguageModel(ModelConfig config);
  // Models are copied as what they are, never as this alone; copies share parameters.
  LanguageModel(const LanguageModel&) = default;
  LanguageModel& operator=(const LanguageModel&) = default;

  /// Throws ValueError unless ids are (B, T) with T at most n_positions.
  void check_ids(const Tensor& ids) const;

  ModelConfig config_;
  // Set by the architecture.
  Tensor embedding_;  // (C, F)
  Tensor head_;       // (C, F): `embedding_` itself, or a parameter of its own
  ParameterList parameters_;
};

/// A model of config.architecture, initialised from `seed`. Throws ValueError on an invalid config.
std::unique_ptr<LanguageModel> make_model(const ModelConfig& config, uint64_t seed = 0,
                                          DType dtype = DType::f32, Device device = {});

}  // namespace tapehead
