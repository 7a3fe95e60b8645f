#include "tapehead/tools/sample_log.h"

#include <nlohmann/json.hpp>

#include "tapehead/models/generate.h"

namespace tapehead {

SampleLog::SampleLog(const std::string& path, int64_t evaluated_step, std::vector<std::string> prompts,
                     const Tokenizer& tokenizer)
    : lines_(path, [=](int64_t step, const auto&) { return step <= evaluated_step; }),
      prompts_(std::move(prompts)),
      tokenizer_(&tokenizer) {}

void SampleLog::write(const LanguageModel& model, int64_t step) {
  for (const std::string& prompt : prompts_) {
    const auto tokens = generate(
        model, tokenizer_->encode(prompt.empty() ? "\n" : prompt),
        {.max_tokens = 60, .vocab_size = tokenizer_->vocab_size(), .stop_token = tokenizer_->end_of_text()});
    lines_.append({{"step", step}, {"prompt", prompt}, {"text", tokenizer_->decode(tokens[0])}});
  }
}

}  // namespace tapehead
