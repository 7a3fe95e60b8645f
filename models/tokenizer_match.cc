#include "tapehead/models/tokenizer_match.h"

#include "tapehead/core/error.h"

namespace tapehead {

void check_same_tokenizer(const TokenizerUse& first, const TokenizerUse& second, std::string_view advice) {
  check<ValueError>(
      first.hash.empty() || second.hash.empty() || first.hash == second.hash,
      "[tokenizer] {} and {} do not match: the first is of the tokenizer {}, the second of the tokenizer {}; "
      "{}",
      first.what, second.what, first.hash, second.hash, advice);
}

}  // namespace tapehead
