// Arbitrary bytes as a tokenizer.json: refused with an error of ours, or a tokenizer that encodes and gives
// texts back.
#include <cstdlib>
#include <string>

#include "tapehead/core/error.h"
#include "tapehead/models/tokenizer.h"
#include "tapehead/models/tokenizer_json.h"
#include "tapehead/tests/fuzz/fuzzer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tapehead;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  bool accepted = false;
  try {
    const Vocabulary vocabulary = parse_tokenizer_json(bytes, "tokenizer.json");
    accepted = true;
    const Tokenizer tokenizer(vocabulary);
    // The file is a text, too, in which its own tokens occur.
    for (const SpecialTokens special : {SpecialTokens::as_text, SpecialTokens::recognized}) {
      const std::string decoded = tokenizer.decode(tokenizer.encode(bytes, special));
      if (!vocabulary.nfc && decoded != bytes) std::abort();
    }
    parse_tokenizer_json(to_tokenizer_json(vocabulary), "what was saved");
  } catch (const ValueError&) {
    if (accepted) std::abort();
  }
  return 0;
}
