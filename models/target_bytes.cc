#include "tapehead/models/target_bytes.h"

#include <algorithm>
#include <vector>

namespace tapehead {

int64_t target_bytes(const Dataset& data, const Tokenizer& tokenizer) {
  std::vector<int64_t> bytes;  // by token
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    bytes.push_back(std::ssize(tokenizer.decode({&id, 1})));
  bytes[static_cast<size_t>(tokenizer.end_of_text())] = 0;
  int64_t sum = 0;
  std::vector<int64_t> tokens(1 << 16);
  const auto add = [&](const TokenStream& stream, int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t count = std::min(std::ssize(tokens), end - begin);
      stream.copy(begin, count, tokens.data());
      for (int64_t i = 0; i < count; ++i)
        sum += bytes.at(static_cast<size_t>(tokens[static_cast<size_t>(i)]));
      begin += count;
    }
  };
  for (const TokenStream& stream : data.streams()) {
    const DocumentTable* documents = stream.documents();
    if (!documents) add(stream, 1, stream.size());
    for (int64_t i = 0; documents && i < documents->size(); ++i) {
      const DocumentPlace document = (*documents)[i];
      add(stream, std::max<int64_t>(document.first_target, 1), document.end);
    }
  }
  return sum;
}

}  // namespace tapehead
