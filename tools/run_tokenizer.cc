#include "tapehead/tools/run_tokenizer.h"

#include "tapehead/models/tokenizer_match.h"

namespace tapehead {

void check_tokenizer(const RunFolder& run, const std::string& checkpoint_hash,
                     const std::string& tokenizer_hash) {
  check_same_tokenizer({run.checkpoint(), checkpoint_hash}, {run.tokenizer(), tokenizer_hash},
                       "put the tokenizer back that the model was trained with");
}

}  // namespace tapehead
