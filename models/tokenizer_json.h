// Hugging Face's tokenizer.json, the format of the `tokenizers` package, for byte-level BPE.
#pragma once

#include <string>

#include "tapehead/models/vocabulary.h"

namespace tapehead {

/// Reads the text of a tokenizer.json; errors name it by `path`. end_of_text and tokenizer_config, which it
/// does not say, are left as they are in a new Vocabulary. ValueError, naming the place in the file, for what
/// is no such file, and for every setting that would give other ids than encode() does: other models,
/// splitting rules, normalizers or post-processors, and added tokens that take the white space around them
/// along.
Vocabulary parse_tokenizer_json(const std::string& text, const std::string& path);

/// A tokenizer.json from which the `tokenizers` package gives the same ids.
std::string to_tokenizer_json(const Vocabulary& vocabulary);

}  // namespace tapehead
