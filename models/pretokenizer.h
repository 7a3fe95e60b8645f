// How a text is cut into the pieces that byte-pair merges never cross.
#pragma once

#include <functional>
#include <string_view>

namespace tapehead {

/// The rules in use. Each is a regular expression in its model's tokenizer.json; what a rule says is written
/// beside its code.
enum class SplittingRule {
  gpt2,    ///< encoder.py in github.com/openai/gpt-2: contractions, words, numbers, punctuation, white space
  smollm,  ///< digits one by one, then GPT-2's rule between them
  llama3,  ///< words take any one character before them along, numbers have up to three digits
  qwen2,   ///< Llama 3's with numbers of one digit
};

/// Cuts `text` and hands the pieces to `take`, in order and without gaps. Any bytes are accepted: one that is
/// no part of valid UTF-8 is a piece of its own, and the text around it is cut as if it ended there.
/// Thread-safe.
void for_each_piece(std::string_view text, SplittingRule rule,
                    const std::function<void(std::string_view piece)>& take);

}  // namespace tapehead
