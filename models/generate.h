// Text out of a model, token by token.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "tapehead/models/language_model.h"

namespace tapehead {

struct GenerateOptions {
  int64_t max_tokens = 200;  ///< how many new tokens
  double temperature = 0.8;  ///< divides the logits; 0: always the likeliest token
  int64_t top_k = 40;        ///< only the k likeliest tokens are drawn from; 0: all
  uint64_t seed = 0;
  std::optional<int32_t> stop_token = {};  ///< ends the text, and is not part of it
  /// Told each token as it comes; false ends the text after it.
  std::function<bool(int32_t token)> on_token = {};
};

/// The tokens that follow `prompt`, without it. Of a longer text the model sees the last n_positions tokens.
/// Throws ValueError for an empty prompt, a token outside the vocabulary, or options out of range;
/// RuntimeError if the model's logits are no numbers.
std::vector<int32_t> generate(const LanguageModel& model, std::span<const int32_t> prompt,
                              const GenerateOptions& options = {});

}  // namespace tapehead
