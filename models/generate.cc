#include "tapehead/models/generate.h"

#include <algorithm>

#include "tapehead/core/view.h"
#include "tapehead/models/key_value_cache.h"

namespace tapehead {

namespace {

struct Sample {
  std::vector<int64_t> text;  // prompt and what followed, of one length in all samples
  Generator numbers;
  std::vector<int32_t> generated = {};
  bool ended = false;  // it stays in the batch, and what it says is not listened to
};

// Reads the samples' texts, in windows of at most n_positions tokens.
class Reader {
 public:
  Reader(const LanguageModel& model, int64_t prompt_tokens, const GenerateOptions& options)
      : model_(model), begin_(std::max<int64_t>(prompt_tokens - model.config().n_positions, 0)) {
    if (options.use_cache) cache_.emplace(model, options.samples);
  }

  // The logits (samples, C) of the tokens that follow.
  Tensor next_logits(std::span<const Sample> samples) {
    const int64_t end = std::ssize(samples[0].text), n_positions = model_.config().n_positions;
    if (end - begin_ > n_positions) {
      begin_ = end - (n_positions + 1) / 2;
      if (cache_) cache_->truncate(0);
    }
    const int64_t read = begin_ + (cache_ ? cache_->length() : 0), rows = std::ssize(samples);
    std::vector<int64_t> ids;
    for (const Sample& s : samples) ids.insert(ids.end(), s.text.begin() + read, s.text.end());
    const Tensor hidden =
        model_.hidden(Tensor::from<int64_t>({rows, end - read}, ids), {.cache = cache_ ? &*cache_ : nullptr});
    return model_.head(select(hidden, 1, -1));
  }

 private:
  const LanguageModel& model_;
  int64_t begin_;  // of the window
  std::optional<KeyValueCache> cache_;
};

void extend(Sample& sample, int64_t index, std::span<const double> logits, const GenerateOptions& options) {
  if (sample.ended) {
    sample.text.push_back(sample.text.back());
    return;
  }
  const int64_t token = draw(candidates(logits, sample.text, options.sampler), sample.numbers);
  sample.text.push_back(token);
  const auto id = static_cast<int32_t>(token);
  sample.ended = id == options.stop_token;
  if (sample.ended) return;
  sample.generated.push_back(id);
  sample.ended = options.on_token && !options.on_token(index, id);
}

}  // namespace

std::vector<std::vector<int32_t>> generate(const LanguageModel& model, std::span<const int32_t> prompt,
                                           const GenerateOptions& options) {
  check<ValueError>(!prompt.empty(), "[generate] the prompt has no tokens: give at least one");
  check<ValueError>(options.max_tokens >= 0, "[generate] max_tokens is {}: it must not be negative",
                    options.max_tokens);
  check<ValueError>(options.samples >= 1, "[generate] samples is {}: it must be at least 1", options.samples);
  options.sampler.validate();
  const int64_t vocab_size = model.config().vocab_size;
  check<ValueError>(options.vocab_size >= 0 && options.vocab_size <= vocab_size,
                    "[generate] vocab_size is {}: the model has {} tokens", options.vocab_size, vocab_size);
  const int64_t drawn_from = options.vocab_size == 0 ? vocab_size : options.vocab_size;
  for (const int32_t token : prompt) {
    check<ValueError>(token >= 0 && token < vocab_size,
                      "[generate] the prompt holds token {}: the model's are 0 to {}", token, vocab_size - 1);
  }

  const NoGradGuard no_grad;
  std::vector<Sample> samples;
  for (int64_t i = 0; i < options.samples; ++i) {
    samples.push_back({.text = {prompt.begin(), prompt.end()},
                       .numbers = {.seed = options.seed + static_cast<uint64_t>(i)}});
  }
  Reader reader(model, std::ssize(prompt), options);
  for (int64_t made = 0; made < options.max_tokens; ++made) {
    if (std::ranges::all_of(samples, &Sample::ended)) break;
    const std::vector<double> logits = reader.next_logits(samples).to_vector<double>();
    for (int64_t i = 0; i < options.samples; ++i) {
      const auto row =
          std::span(logits).subspan(static_cast<size_t>(i * vocab_size), static_cast<size_t>(drawn_from));
      extend(samples[static_cast<size_t>(i)], i, row, options);
    }
  }
  std::vector<std::vector<int32_t>> generated;
  for (Sample& sample : samples) generated.push_back(std::move(sample.generated));
  return generated;
}

}  // namespace tapehead
