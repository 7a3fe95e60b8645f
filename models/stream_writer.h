// Writes the tokens of a source as shards, and where its documents stand.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tapehead/models/dataset.h"
#include "tapehead/models/tokenizer.h"

namespace tapehead {

/// The files of a stream, as names within a folder.
struct StreamFiles {
  int64_t tokens = 0;
  std::vector<std::string> shards = {};  ///< TokenFiles, all but the last of one size
  std::string documents = {};            ///< a DocumentTable; empty where all is one document
};

/// Maps a stream's files. The errors of TokenFile::open, DocumentTable::open and TokenStream; ValueError if
/// they have not as many tokens.
TokenStream open_stream(const std::string& folder, const StreamFiles& files);

/// Writes NAME-00000.tokens, NAME-00001.tokens, ... and NAME.documents. Every file is whole once it has its
/// name; which files make the stream, finish() says.
class StreamWriter {
 public:
  /// shard_bytes   the largest shard, its tokens alone; at least one token
  /// documents     whether there are documents, or all is one
  StreamWriter(std::string folder, std::string name, const Tokenizer& tokenizer, int64_t shard_bytes,
               bool documents);

  /// Tokens of the present document. ValueError if one is outside the vocabulary; SystemError if the machine
  /// refuses, here and below.
  void append(std::span<const int32_t> tokens);
  /// The present document ends here; `prompt` of its tokens are a prompt.
  void end_document(int64_t prompt);

  int64_t size() const { return size_; }
  StreamFiles finish();

 private:
  TokenFileWriter& shard();

  std::string folder_, name_, tokenizer_hash_;
  int64_t vocab_size_, shard_tokens_;
  StreamFiles files_;
  std::optional<TokenFileWriter> shard_;
  std::optional<DocumentTableWriter> documents_;
  int64_t size_ = 0, document_begin_ = 0;
};

}  // namespace tapehead
