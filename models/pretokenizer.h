// How a text is cut into the pieces that byte-pair merges never cross.
#pragma once

#include <functional>
#include <string_view>

namespace tapehead {

/// Cuts `text` by GPT-2's rule (encoder.py in github.com/openai/gpt-2: contractions, words, numbers and
/// punctuation, each with the one space before it, and runs of white space) and hands the pieces to `take`,
/// in order and without gaps. Any bytes are accepted: one that is no part of valid UTF-8 is a piece of its
/// own. Which characters are letters and digits is the PCRE2 library's word. Thread-safe.
void for_each_piece(std::string_view text, const std::function<void(std::string_view piece)>& take);

}  // namespace tapehead
