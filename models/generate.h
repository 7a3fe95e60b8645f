// Text out of a model, token by token.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "tapehead/models/language_model.h"
#include "tapehead/models/sampler.h"

namespace tapehead {

struct GenerateOptions {
  int64_t max_tokens = 200;  ///< how many new tokens in a sample
  SamplerOptions sampler = {};
  int64_t samples = 1;  ///< continuations of the prompt, computed together
  uint64_t seed = 0;    ///< of sample 0; sample i has the numbers of seed + i, alone or among others
  /// Keeps keys and values of what was read (KeyValueCache). Without it every token reads
  /// the context again: the same tokens, but for the rounding of products of other shapes.
  bool use_cache = true;
  /// Only tokens below are drawn: a tokenizer's, of a model whose embeddings have rows to spare; 0: all.
  int64_t vocab_size = 0;
  std::optional<int32_t> stop_token = {};  ///< ends a sample, and is not part of it
  /// Told each token as it comes; false ends the sample after it.
  std::function<bool(int64_t sample, int32_t token)> on_token = {};
};

/// The tokens that follow `prompt`, without it, by sample. The model sees the last n_positions
/// tokens of the prompt and what follows them; whenever that outgrows n_positions, it goes on
/// from the last half of them. Throws ValueError for an empty prompt, a token outside the
/// vocabulary, or options out of range; RuntimeError if the model's logits are no numbers.
std::vector<std::vector<int32_t>> generate(const LanguageModel& model, std::span<const int32_t> prompt,
                                           const GenerateOptions& options = {});

}  // namespace tapehead
