// All that a tokenizer is, as data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tapehead/models/added_tokens.h"
#include "tapehead/models/bpe_trainer.h"
#include "tapehead/models/pretokenizer.h"

namespace tapehead {

/// What tokenizer.json holds, or vocab.json and merges.txt: a byte-level BPE model and what goes before and
/// after it. Each byte is a token.
struct Vocabulary {
  std::vector<std::string> tokens;  ///< bytes, by id
  int64_t model_size = 0;           ///< the first so many are the BPE model's; the rest was added to it
  std::vector<TokenPair> merges;    ///< by rank
  std::vector<int32_t> merged;      ///< by rank: what the pair becomes, its concatenation
  std::vector<AddedToken> added;    ///< of the model's own tokens, too, those that are found in a text whole
  SplittingRule rule = SplittingRule::gpt2;
  bool nfc = false;            ///< texts are brought to Unicode's normal form C first
  bool ignore_merges = false;  ///< a piece that is a token becomes it, whatever the merges would give
  int32_t end_of_text = 0;
  std::optional<int32_t> beginning_of_text = {};  ///< what the post-processor puts before a text

  // Kept as they were read, for whoever reads what is saved; empty if there was none.
  std::string post_processor = {};    ///< JSON, of tokenizer.json
  std::string tokenizer_config = {};  ///< the whole tokenizer_config.json
};

}  // namespace tapehead
