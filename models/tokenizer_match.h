// Whether tokens, models and tokenizers belong together: two tokenizers of one size may
// still differ in every token.
#pragma once

#include <string>
#include <string_view>

namespace tapehead {

/// Something that a tokenizer made, or is.
struct TokenizerUse {
  std::string what;  ///< for people: a file, a folder
  std::string hash;  ///< Tokenizer::hash(); empty where it was not kept
};

/// ValueError that names both and ends with `advice`, unless they are of one tokenizer or
/// one of them does not tell.
void check_same_tokenizer(const TokenizerUse& first, const TokenizerUse& second, std::string_view advice);

}  // namespace tapehead
