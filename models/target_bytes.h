// How much text the targets of a measurement stand for.
#pragma once

#include "tapehead/models/dataset.h"
#include "tapehead/models/tokenizer.h"

namespace tapehead {

/// Bytes of text that the targets in `data` stand for: all tokens but each stream's first, prompts and ends
/// of text. `tokenizer` is the one that made them.
int64_t target_bytes(const Dataset& data, const Tokenizer& tokenizer);

}  // namespace tapehead
