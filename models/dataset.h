// Tokens to train or to measure on: of one source or of several, each with its documents.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tapehead/models/document_table.h"
#include "tapehead/models/token_file.h"

namespace tapehead {

/// The tokens of a source in one row, however many files hold them. Movable; any number
/// of threads may read one.
class TokenStream {
 public:
  /// One document, all of it.
  explicit TokenStream(TokenFile tokens);
  /// Files that follow each other, all but the last of one size; without `documents` they hold a single one.
  /// ValueError unless there is a file, sizes, vocabularies and tokenizers agree, and the
  /// documents have as many tokens.
  TokenStream(std::vector<TokenFile> shards, std::optional<DocumentTable> documents);

  int64_t size() const { return size_; }
  int64_t vocab_size() const { return shards_.front().vocab_size(); }
  /// Of the tokenizer that made the tokens; empty where that was not kept.
  const std::string& tokenizer_hash() const { return shards_.front().tokenizer_hash(); }
  /// Null where all is one document.
  const DocumentTable* documents() const { return documents_ ? &*documents_ : nullptr; }

  /// Copies tokens begin .. begin + count - 1 to `out`, widened for embedding. ValueError
  /// beyond the end, and for a damaged token.
  void copy(int64_t begin, int64_t count, int64_t* out) const;

 private:
  std::vector<TokenFile> shards_;
  std::optional<DocumentTable> documents_;
  int64_t size_ = 0;
};

/// Streams, and how often each is to be seen. Movable; any number of threads may read one.
class Dataset {
 public:
  /// One stream of one document.
  Dataset(TokenFile tokens);  // NOLINT: a file of tokens is the simplest dataset
  /// `weights`, one for each stream: of the windows of an epoch, stream k has the share weights[k] /
  /// sum. Empty: every window of every stream comes once. ValueError unless there is a stream, their
  /// vocabularies are of one size and one tokenizer, and the weights are positive numbers, one a stream.
  explicit Dataset(std::vector<TokenStream> streams, std::vector<double> weights = {});

  std::span<const TokenStream> streams() const { return streams_; }
  std::span<const double> weights() const { return weights_; }
  /// Tokens of all streams.
  int64_t size() const;
  int64_t vocab_size() const { return streams_.front().vocab_size(); }
  const std::string& tokenizer_hash() const { return streams_.front().tokenizer_hash(); }

 private:
  std::vector<TokenStream> streams_;
  std::vector<double> weights_;
};

}  // namespace tapehead
