#include "tapehead/models/stream_writer.h"

#include <algorithm>
#include <utility>

#include "tapehead/core/error.h"

namespace tapehead {

TokenStream open_stream(const std::string& folder, const StreamFiles& files) {
  std::vector<TokenFile> shards;
  for (const std::string& name : files.shards) shards.push_back(TokenFile::open(folder + "/" + name));
  std::optional<DocumentTable> documents;
  if (!files.documents.empty()) documents = DocumentTable::open(folder + "/" + files.documents);
  TokenStream stream(std::move(shards), std::move(documents));
  check<ValueError>(stream.size() == files.tokens, "[data] shards in {} hold {} tokens, and should hold {}",
                    folder, stream.size(), files.tokens);
  return stream;
}

StreamWriter::StreamWriter(std::string folder, std::string name, const Tokenizer& tokenizer,
                           int64_t shard_bytes, bool documents)
    : folder_(std::move(folder)),
      name_(std::move(name)),
      tokenizer_hash_(tokenizer.hash()),
      vocab_size_(tokenizer.vocab_size()),
      shard_tokens_(std::max<int64_t>(shard_bytes / TokenFile::token_bytes(vocab_size_), 1)) {
  if (!documents) return;
  files_.documents = name_ + ".documents";
  documents_.emplace(folder_ + "/" + files_.documents);
}

// One that is not full, begun if need be.
TokenFileWriter& StreamWriter::shard() {
  if (shard_ && shard_->size() == shard_tokens_) {
    shard_->commit();
    shard_.reset();
  }
  if (!shard_) {
    files_.shards.push_back(fmt::format("{}-{:05}.tokens", name_, files_.shards.size()));
    shard_.emplace(folder_ + "/" + files_.shards.back(), vocab_size_, tokenizer_hash_);
  }
  return *shard_;
}

void StreamWriter::append(std::span<const int32_t> tokens) {
  size_ += std::ssize(tokens);
  while (!tokens.empty()) {
    TokenFileWriter& file = shard();
    const auto part = static_cast<size_t>(std::min(std::ssize(tokens), shard_tokens_ - file.size()));
    file.append(tokens.first(part));
    tokens = tokens.subspan(part);
  }
}

void StreamWriter::end_document(int64_t prompt) {
  documents_->append(size_ - document_begin_, prompt);
  document_begin_ = size_;
}

StreamFiles StreamWriter::finish() {
  if (!shard_) shard();  // a stream without tokens is a file without tokens
  shard_->commit();
  shard_.reset();
  if (documents_) documents_->commit();
  files_.tokens = size_;
  return files_;
}

}  // namespace tapehead
