// Text out of tokens that come one by one.
#pragma once

#include <string>
#include <utility>

#include "tapehead/models/tokenizer.h"
#include "tapehead/models/utf8.h"

namespace tapehead {

/// Decodes for a terminal: a token may end within a character, whose bytes are then held back until the rest
/// of them has come. What it has given, in order, is the decoded text. The tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// The bytes that `token` completes, none perhaps. The errors of Tokenizer::decode.
  std::string add(int32_t token) {
    pending_ += tokenizer_.decode({&token, 1});
    std::string rest = pending_.substr(size_of_whole_characters(pending_));
    pending_.resize(pending_.size() - rest.size());
    return std::exchange(pending_, std::move(rest));
  }

  /// The end: what was held back, a character that nothing completed.
  std::string finish() { return std::exchange(pending_, {}); }

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;
};

}  // namespace tapehead
