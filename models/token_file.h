// Tokens on disk, so that a text is encoded once and read in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tapehead/core/file.h"

namespace tapehead {

/// A file of tokens, mapped into memory. It is little-endian, and begins with six words of 8 bytes:
///
///   "TAPETOKS" | version | number of tokens | vocab_size | hash of the tokenizer, 16 letters; zeros: unknown
///
/// Then come the tokens, 2 bytes each where vocab_size <= 65536 and 4 bytes each elsewhere, and nothing
/// else. Version 1, which is read, too, had no hash. Movable; any number of threads may read one.
class TokenFile {
 public:
  static constexpr std::string_view kMagic = "TAPETOKS";

  /// Writes a file, whole or not at all. ValueError if a token is outside the vocabulary or vocab_size is not
  /// positive; SystemError if the machine refuses.
  ///   tokenizer_hash   Tokenizer::hash() of the tokenizer that made them, empty or of 16 letters
  static void write(const std::string& path, std::span<const int32_t> tokens, int64_t vocab_size,
                    std::string_view tokenizer_hash = {});

  /// Maps a file. ValueError if it is missing or no such file, whole and of a version that is known; also if
  /// `vocab_size` or `tokenizer_hash` is given and the file's differs: another tokenizer
  /// made it. SystemError if unreadable.
  static TokenFile open(const std::string& path, std::optional<int64_t> vocab_size = std::nullopt,
                        std::string_view tokenizer_hash = {});

  /// Tokens that last as long as the object alone: a file under the system's temporary
  /// folder, whose name is gone when this returns. The errors of write().
  static TokenFile temporary(std::span<const int32_t> tokens, int64_t vocab_size,
                             std::string_view tokenizer_hash = {});

  /// Bytes of a token in a file of this vocabulary.
  static int64_t token_bytes(int64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

  int64_t size() const { return size_; }
  int64_t vocab_size() const { return vocab_size_; }
  /// Of the tokenizer that made the tokens; empty where that was not kept.
  const std::string& tokenizer_hash() const { return tokenizer_hash_; }

  /// Token `index`. ValueError outside 0 .. size() - 1, and for a damaged token: one outside the vocabulary.
  int32_t operator[](int64_t index) const;

  /// Copies tokens begin .. begin + count - 1 to `out`, widened for embedding. The errors of operator[].
  void copy(int64_t begin, int64_t count, int64_t* out) const;

 private:
  TokenFile(std::string path, MappedFile file, int64_t size, int64_t vocab_size, int64_t header_bytes,
            std::string tokenizer_hash);

  std::string path_;
  MappedFile file_;
  int64_t size_;
  int64_t vocab_size_;
  int64_t header_bytes_;
  std::string tokenizer_hash_;
};

/// Writes a token file in parts. Nothing stands at `path` before commit(), and nothing
/// new if that is never called.
class TokenFileWriter {
 public:
  /// ValueError unless vocab_size is positive and the hash empty or of 16 letters;
  /// SystemError if the machine refuses, here and below.
  TokenFileWriter(const std::string& path, int64_t vocab_size, std::string_view tokenizer_hash = {});

  /// ValueError if a token is outside the vocabulary; nothing can be committed then.
  void append(std::span<const int32_t> tokens);
  int64_t size() const { return size_; }

  /// To be called once.
  void commit();

 private:
  std::string path_, tokenizer_hash_;
  int64_t vocab_size_;
  int64_t size_ = 0;
  AtomicFile file_;
};

}  // namespace tapehead
