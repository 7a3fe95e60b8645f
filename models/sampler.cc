#include "tapehead/models/sampler.h"

#include <algorithm>
#include <cmath>

#include "tapehead/core/error.h"

namespace tapehead {

void SamplerOptions::validate() const {
  const auto require = [](bool fits, double value, const char* field, const char* rule) {
    check<ValueError>(fits, "[generate] {} is {}: it must be {}", field, value, rule);
  };
  require(repetition_penalty > 0 && std::isfinite(repetition_penalty), repetition_penalty,
          "repetition_penalty", "a positive number");
  require(temperature >= 0 && std::isfinite(temperature), temperature, "temperature",
          "0 or a positive number");
  check<ValueError>(top_k >= 0, "[generate] top_k is {}: it must be 0 or positive", top_k);
  require(top_p > 0 && top_p <= 1, top_p, "top_p", "above 0 and at most 1");
  require(min_p >= 0 && min_p <= 1, min_p, "min_p", "in [0, 1]");
}

// Ties go to the smaller token, so that the choice is the same everywhere.
static bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

static void penalize(std::vector<Candidate>& all, std::span<const int64_t> text, double penalty) {
  std::vector<bool> seen(all.size());
  for (const int64_t token : text) {
    const auto i = static_cast<size_t>(token);
    if (i >= seen.size() || seen[i]) continue;  // beyond: one of the model's that is not drawn
    seen[i] = true;
    all[i].logit = all[i].logit < 0 ? all[i].logit * penalty : all[i].logit / penalty;
  }
}

// How many of `sorted`, the likeliest first, are left when top_p has cut from the unlikely end.
static size_t nucleus(std::span<const Candidate> sorted, double top_p) {
  std::vector<double> weight;
  double total = 0;
  for (const Candidate& c : sorted) total += weight.emplace_back(std::exp(c.logit - sorted[0].logit));
  size_t kept = sorted.size();
  for (double cut = 0; kept > 1; --kept) {
    cut += weight[kept - 1] / total;
    if (cut > 1 - top_p) break;
  }
  return kept;
}

std::vector<Candidate> candidates(std::span<const double> logits, std::span<const int64_t> text,
                                  const SamplerOptions& options) {
  const auto is_nan = [](double logit) { return std::isnan(logit); };
  check<RuntimeError>(std::ranges::none_of(logits, is_nan),
                      "[generate] the model's logits are no numbers: its parameters are damaged");
  std::vector<Candidate> left;
  left.reserve(logits.size());
  for (const double logit : logits) left.push_back({std::ssize(left), logit});

  if (options.repetition_penalty != 1) penalize(left, text, options.repetition_penalty);
  if (options.temperature == 0) return {*std::ranges::min_element(left, likelier)};
  for (Candidate& c : left) c.logit /= options.temperature;
  if (options.top_k > 0 && options.top_k < std::ssize(left)) {
    const auto last = left.begin() + options.top_k - 1;
    std::ranges::nth_element(left, last, likelier);
    const double least = last->logit;
    std::erase_if(left, [&](const Candidate& c) { return c.logit < least; });
  }
  std::ranges::sort(left, likelier);
  if (options.top_p < 1) left.resize(nucleus(left, options.top_p));
  const double likeliest = left[0].logit;
  std::erase_if(left, [&](const Candidate& c) { return std::exp(c.logit - likeliest) < options.min_p; });
  return left;
}

int64_t draw(std::span<const Candidate> candidates, Generator& generator) {
  if (candidates.size() == 1) return candidates[0].token;
  std::vector<double> cumulative;
  double total = 0;
  for (const Candidate& c : candidates) {
    cumulative.push_back(total += std::exp(c.logit - candidates[0].logit));
  }
  const auto chosen = std::ranges::upper_bound(cumulative, generator.uniform() * total) - cumulative.begin();
  return candidates[std::min(static_cast<size_t>(chosen), candidates.size() - 1)].token;
}

}  // namespace tapehead
