#include "tapehead/models/dataset.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tapehead/core/error.h"
#include "tapehead/models/tokenizer_match.h"

namespace tapehead {

// A vector of things that can be moved and not copied takes no braces.
template <class T>
static std::vector<T> only(T value) {
  std::vector<T> one;
  one.push_back(std::move(value));
  return one;
}

TokenStream::TokenStream(TokenFile tokens) : TokenStream(only(std::move(tokens)), std::nullopt) {}

TokenStream::TokenStream(std::vector<TokenFile> shards, std::optional<DocumentTable> documents)
    : shards_(std::move(shards)), documents_(std::move(documents)) {
  check<ValueError>(!shards_.empty(), "[dataset] a stream of tokens takes at least one file");
  for (size_t i = 0; i < shards_.size(); ++i) {
    const bool last = i + 1 == shards_.size();
    check<ValueError>(
        shards_[i].vocab_size() == vocab_size() &&
            (last ? shards_[i].size() <= shards_[0].size() : shards_[i].size() == shards_[0].size()),
        "[dataset] shard {} has {} tokens of a vocabulary of {}, unlike the first with {} of {}: "
        "they do not belong together",
        i, shards_[i].size(), shards_[i].vocab_size(), shards_[0].size(), vocab_size());
    check_same_tokenizer({"the first shard", tokenizer_hash()},
                         {fmt::format("shard {}", i), shards_[i].tokenizer_hash()}, "encode them again");
    size_ += shards_[i].size();
  }
  check<ValueError>(!documents_ || documents_->tokens() == size_,
                    "[dataset] documents of {} tokens are given for {}: they do not belong together",
                    documents_ ? documents_->tokens() : 0, size_);
}

void TokenStream::copy(int64_t begin, int64_t count, int64_t* out) const {
  const int64_t full = std::max<int64_t>(shards_.front().size(), 1);
  while (true) {
    const int64_t shard = std::clamp<int64_t>(begin / full, 0, std::ssize(shards_) - 1);
    const TokenFile& file = shards_[static_cast<size_t>(shard)];
    const int64_t from = begin - shard * full;
    // What no file holds is left to the last, which says so.
    const int64_t part = shard + 1 == std::ssize(shards_) ? count : std::min(count, file.size() - from);
    file.copy(from, part, out);
    if (part == count) return;
    begin += part;
    count -= part;
    out += part;
  }
}

Dataset::Dataset(TokenFile tokens) : Dataset(only(TokenStream(std::move(tokens)))) {}

Dataset::Dataset(std::vector<TokenStream> streams, std::vector<double> weights)
    : streams_(std::move(streams)), weights_(std::move(weights)) {
  check<ValueError>(!streams_.empty(), "[dataset] there is no source of tokens");
  check<ValueError>(weights_.empty() || weights_.size() == streams_.size(),
                    "[dataset] {} weights for {} sources: it takes one for each, or none", weights_.size(),
                    streams_.size());
  for (const double weight : weights_) {
    check<ValueError>(weight > 0 && std::isfinite(weight),
                      "[dataset] a source's weight is {}, but must be a positive number", weight);
  }
  for (const TokenStream& stream : streams_) {
    check<ValueError>(
        stream.vocab_size() == vocab_size(),
        "[dataset] one source has tokens of a vocabulary of {}, another of {}: encode both with "
        "the same tokenizer",
        vocab_size(), stream.vocab_size());
    check_same_tokenizer({"one source", tokenizer_hash()}, {"another", stream.tokenizer_hash()},
                         "encode both with the same tokenizer");
  }
}

int64_t Dataset::size() const {
  int64_t size = 0;
  for (const TokenStream& stream : streams_) size += stream.size();
  return size;
}

}  // namespace tapehead
