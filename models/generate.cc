#include "tapehead/models/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tapehead/core/view.h"

namespace tapehead {

// The logits of the token that follows `text`.
static std::vector<double> next_logits(const LanguageModel& model, std::span<const int64_t> text) {
  const auto seen = text.last(std::min(text.size(), static_cast<size_t>(model.config().n_positions)));
  const Tensor ids = Tensor::from<int64_t>({1, std::ssize(seen)}, seen, model.device());
  return model.head(select(model.hidden(ids), 1, -1)).to_vector<double>();
}

// A token drawn from softmax(logits / temperature) over the top_k likeliest.
static int64_t draw(const std::vector<double>& logits, double temperature, int64_t top_k,
                    Generator& generator) {
  const auto is_nan = [](double logit) { return std::isnan(logit); };
  check<RuntimeError>(std::none_of(logits.begin(), logits.end(), is_nan),
                      "[generate] the model's logits are no numbers: its parameters are damaged");
  std::vector<int64_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), int64_t{0});
  // Ties go to the smaller token, so that the choice is the same everywhere.
  const auto likelier = [&](int64_t a, int64_t b) {
    const double la = logits[static_cast<size_t>(a)], lb = logits[static_cast<size_t>(b)];
    return la > lb || (la == lb && a < b);
  };
  const bool greedy = temperature == 0;
  const int64_t k = greedy ? 1 : top_k == 0 ? std::ssize(tokens) : std::min(top_k, std::ssize(tokens));
  std::partial_sort(tokens.begin(), tokens.begin() + k, tokens.end(), likelier);
  const double largest = logits[static_cast<size_t>(tokens[0])];
  if (greedy) return tokens[0];

  std::vector<double> cumulative;
  double total = 0;
  for (int64_t i = 0; i < k; ++i) {
    total += std::exp((logits[static_cast<size_t>(tokens[static_cast<size_t>(i)])] - largest) / temperature);
    cumulative.push_back(total);
  }
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), generator.uniform() * total);
  return tokens[static_cast<size_t>(std::min(chosen - cumulative.begin(), k - 1))];
}

std::vector<int32_t> generate(const LanguageModel& model, std::span<const int32_t> prompt,
                              const GenerateOptions& options) {
  check<ValueError>(!prompt.empty(), "[generate] the prompt has no tokens: give at least one");
  check<ValueError>(options.max_tokens >= 0, "[generate] max_tokens is {}: it must not be negative",
                    options.max_tokens);
  check<ValueError>(options.temperature >= 0 && std::isfinite(options.temperature),
                    "[generate] temperature is {}: it must be 0 or a positive number", options.temperature);
  check<ValueError>(options.top_k >= 0, "[generate] top_k is {}: it must be 0 or positive", options.top_k);
  const NoGradGuard no_grad;
  Generator generator{.seed = options.seed};
  std::vector<int64_t> text(prompt.begin(), prompt.end());
  for (const int64_t token : text) {
    check<ValueError>(token >= 0 && token < model.config().vocab_size,
                      "[generate] the prompt holds token {}: the model's are 0 to {}", token,
                      model.config().vocab_size - 1);
  }
  std::vector<int32_t> generated;
  while (std::ssize(generated) < options.max_tokens) {
    const auto token =
        static_cast<int32_t>(draw(next_logits(model, text), options.temperature, options.top_k, generator));
    if (token == options.stop_token) break;
    text.push_back(token);
    generated.push_back(token);
    if (options.on_token && !options.on_token(token)) break;
  }
  return generated;
}

}  // namespace tapehead
