// The tokenizer in a run's folder, beside the model there.
#pragma once

#include <string>

#include "tapehead/tools/run_folder.h"

namespace tapehead {

/// Throws ValueError unless the tokenizer in the run's folder, with this hash, is the one that its checkpoint
/// tells of, with that one; empty hashes are unknown.
void check_tokenizer(const RunFolder& run, const std::string& checkpoint_hash,
                     const std::string& tokenizer_hash);

}  // namespace tapehead
