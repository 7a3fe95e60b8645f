// Where the documents of a row of tokens stand, on disk.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tapehead/core/file.h"

namespace tapehead {

/// Tokens begin .. end - 1, the last of them the end of text. Those before first_target
/// are a prompt, which is read and not learnt; without one, first_target == begin.
struct DocumentPlace {
  int64_t begin = 0;
  int64_t first_target = 0;
  int64_t end = 0;

  bool has_prompt() const { return first_target > begin; }
  bool operator==(const DocumentPlace&) const = default;
};

/// A file of documents that follow each other without gaps, mapped into memory. It is
/// little-endian, and begins with five words of 8 bytes:
///
///   "TAPEDOCS" | version | number of documents | number of documents with a prompt | number of tokens
///
/// Then come begin and first_target of each document, 8 bytes each, and nothing else. Movable; any number of
/// threads may read one.
class DocumentTable {
 public:
  static constexpr std::string_view kMagic = "TAPEDOCS";

  /// Maps a file. ValueError if it is missing or no such file, whole and of this version.
  static DocumentTable open(const std::string& path);

  int64_t size() const { return size_; }
  /// How many documents have a prompt.
  int64_t prompts() const { return prompts_; }
  /// Of all documents together.
  int64_t tokens() const { return tokens_; }

  /// Document `index`, 0 .. size() - 1. ValueError for a damaged entry.
  DocumentPlace operator[](int64_t index) const;
  /// The document that token `position`, 0 .. tokens() - 1, belongs to. ValueError for a damaged entry.
  int64_t find(int64_t position) const;

 private:
  DocumentTable(std::string path, MappedFile file, int64_t size, int64_t prompts, int64_t tokens);
  int64_t word(int64_t index) const;

  std::string path_;
  MappedFile file_;
  int64_t size_, prompts_, tokens_;
};

/// Writes a table in parts. Nothing stands at `path` before commit(), and nothing new if
/// that is never called.
class DocumentTableWriter {
 public:
  /// SystemError if the machine refuses, here and below.
  explicit DocumentTableWriter(const std::string& path);

  /// The next document: `prompt` of its `tokens` are a prompt. ValueError unless 0 <= prompt < tokens.
  void append(int64_t tokens, int64_t prompt);
  int64_t size() const { return size_; }

  /// To be called once.
  void commit();

 private:
  void flush();

  int64_t size_ = 0, prompts_ = 0, tokens_ = 0;
  std::vector<int64_t> waiting_;  // words not written yet
  AtomicFile file_;
};

}  // namespace tapehead
