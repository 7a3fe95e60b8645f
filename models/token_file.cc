#include "tapehead/models/token_file.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tapehead/core/error.h"
#include "tapehead/models/tokenizer_match.h"

namespace tapehead {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are read and written as they stand in memory");

struct Header {
  char magic[8];
  int64_t version;
  int64_t size;
  int64_t vocab_size;
  char tokenizer_hash[16];
};

constexpr int64_t kVersion = 2;

int64_t header_size(int64_t version) {
  return version == 1 ? offsetof(Header, tokenizer_hash) : sizeof(Header);
}

template <class Stored>
void write_tokens(AtomicFile& file, std::span<const int32_t> tokens) {
  // In parts, so that a copy of all tokens is never held.
  constexpr size_t kPart = 1 << 16;
  std::vector<Stored> part;
  while (!tokens.empty()) {
    const size_t count = std::min(tokens.size(), kPart);
    part.assign(tokens.begin(), tokens.begin() + static_cast<int64_t>(count));
    file.write({reinterpret_cast<const char*>(part.data()), count * sizeof(Stored)});
    tokens = tokens.subspan(count);
  }
}

// The largest of the tokens copied.
template <class Stored>
int64_t widen(const std::byte* from, int64_t count, int64_t* out) {
  int64_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    Stored token;
    std::memcpy(&token, from + i * static_cast<int64_t>(sizeof(Stored)), sizeof(Stored));
    out[i] = token;
    largest = std::max(largest, out[i]);
  }
  return largest;
}

}  // namespace

static std::string header_bytes(int64_t size, int64_t vocab_size, std::string_view tokenizer_hash) {
  Header header{{}, kVersion, size, vocab_size, {}};
  TokenFile::kMagic.copy(header.magic, sizeof(header.magic));
  tokenizer_hash.copy(header.tokenizer_hash, sizeof(header.tokenizer_hash));
  return {reinterpret_cast<const char*>(&header), sizeof(header)};
}

static int64_t checked_vocab_size(const std::string& path, int64_t vocab_size) {
  check<ValueError>(vocab_size > 0, "[token_file] {}: vocab_size is {}, but must be positive", path,
                    vocab_size);
  return vocab_size;
}

TokenFileWriter::TokenFileWriter(const std::string& path, int64_t vocab_size, std::string_view tokenizer_hash)
    : path_(path),
      tokenizer_hash_(tokenizer_hash),
      vocab_size_(checked_vocab_size(path, vocab_size)),
      file_(path) {
  check<ValueError>(tokenizer_hash.empty() || tokenizer_hash.size() == sizeof(Header::tokenizer_hash),
                    "[token_file] {}: the tokenizer's hash is \"{}\", but has {} letters", path,
                    tokenizer_hash, sizeof(Header::tokenizer_hash));
  file_.write(header_bytes(0, vocab_size, tokenizer_hash));
}

void TokenFileWriter::append(std::span<const int32_t> tokens) {
  for (int64_t i = 0; i < std::ssize(tokens); ++i) {
    check<ValueError>(0 <= tokens[i] && tokens[i] < vocab_size_,
                      "[token_file] {}: token {} is {}, outside the vocabulary of {}", path_, size_ + i,
                      tokens[i], vocab_size_);
  }
  if (TokenFile::token_bytes(vocab_size_) == 2) {
    write_tokens<uint16_t>(file_, tokens);
  } else {
    write_tokens<uint32_t>(file_, tokens);
  }
  size_ += std::ssize(tokens);
}

void TokenFileWriter::commit() {
  file_.overwrite(0, header_bytes(size_, vocab_size_, tokenizer_hash_));
  file_.commit();
}

void TokenFile::write(const std::string& path, std::span<const int32_t> tokens, int64_t vocab_size,
                      std::string_view tokenizer_hash) {
  TokenFileWriter writer(path, vocab_size, tokenizer_hash);
  writer.append(tokens);
  writer.commit();
}

TokenFile TokenFile::temporary(std::span<const int32_t> tokens, int64_t vocab_size,
                               std::string_view tokenizer_hash) {
  // mkdtemp puts a name that nobody has in the place of the X.
  std::string folder = (std::filesystem::temp_directory_path() / "tapehead-XXXXXX").string();
  check<SystemError>(mkdtemp(folder.data()) != nullptr,
                     "[token_file] cannot make a folder for temporary files, {}: {}", folder,
                     std::strerror(errno));
  const std::shared_ptr<void> removal(nullptr, [&](void*) { std::filesystem::remove_all(folder); });
  const std::string path = folder + "/tokens";
  write(path, tokens, vocab_size, tokenizer_hash);
  return open(path);  // mapped, so its name is not needed
}

TokenFile TokenFile::open(const std::string& path, std::optional<int64_t> vocab_size,
                          std::string_view tokenizer_hash) {
  MappedFile file(path);
  const auto length = std::ssize(file.bytes());
  Header header{};
  // No memcpy: an empty file is mapped nowhere, and that takes no null, even for 0 bytes.
  std::ranges::copy(file.bytes().first(static_cast<size_t>(std::min<int64_t>(length, sizeof(header)))),
                    std::as_writable_bytes(std::span(&header, 1)).begin());
  const int64_t header_bytes = header_size(header.version);
  check<ValueError>(length >= header_bytes,
                    "[token_file] {} is no token file: {} bytes are less than its header of {}", path, length,
                    header_bytes);
  check<ValueError>(std::string_view(header.magic, sizeof(header.magic)) == kMagic,
                    "[token_file] {} is no token file: it does not begin with {}", path, kMagic);
  check<ValueError>(1 <= header.version && header.version <= kVersion,
                    "[token_file] {} has version {}, and this program reads versions up to {}", path,
                    header.version, kVersion);
  check<ValueError>(header.vocab_size > 0, "[token_file] {} is damaged: its vocab_size is {}", path,
                    header.vocab_size);
  // The division keeps a damaged size from overflowing.
  const int64_t width = token_bytes(header.vocab_size);
  const int64_t held = (length - header_bytes) / width;
  check<ValueError>(
      header.size == held && (length - header_bytes) % width == 0,
      "[token_file] {} is damaged: its header promises {} tokens of {} bytes, and {} bytes follow it", path,
      header.size, width, length - header_bytes);
  check<ValueError>(
      !vocab_size || *vocab_size == header.vocab_size,
      "[token_file] {} holds tokens of a vocabulary of {}, but the tokenizer has {}; encode the text "
      "again with this tokenizer",
      path, header.vocab_size, vocab_size.value_or(0));
  std::string hash;
  if (header.version > 1 && header.tokenizer_hash[0] != 0)
    hash.assign(header.tokenizer_hash, sizeof(header.tokenizer_hash));
  check_same_tokenizer({path, hash}, {"the tokenizer to read it with", std::string(tokenizer_hash)},
                       "encode the text again with this tokenizer, or name the one that it was encoded with");
  return TokenFile(path, std::move(file), header.size, header.vocab_size, header_bytes, std::move(hash));
}

TokenFile::TokenFile(std::string path, MappedFile file, int64_t size, int64_t vocab_size,
                     int64_t header_bytes, std::string tokenizer_hash)
    : path_(std::move(path)),
      file_(std::move(file)),
      size_(size),
      vocab_size_(vocab_size),
      header_bytes_(header_bytes),
      tokenizer_hash_(std::move(tokenizer_hash)) {}

int32_t TokenFile::operator[](int64_t index) const {
  int64_t token = 0;
  copy(index, 1, &token);
  return static_cast<int32_t>(token);
}

void TokenFile::copy(int64_t begin, int64_t count, int64_t* out) const {
  check<ValueError>(0 <= begin && 0 <= count && begin <= size_ && count <= size_ - begin,
                    "[token_file] {}: {} tokens from {} on are asked for, but it holds {}", path_, count,
                    begin, size_);
  const int64_t width = token_bytes(vocab_size_);
  const std::byte* from = file_.bytes().data() + header_bytes_ + begin * width;
  const int64_t largest = width == 2 ? widen<uint16_t>(from, count, out) : widen<uint32_t>(from, count, out);
  check<ValueError>(largest < vocab_size_,
                    "[token_file] {} is damaged: token {} is {}, outside its vocabulary of {}", path_,
                    begin + (std::find(out, out + count, largest) - out), largest, vocab_size_);
}

}  // namespace tapehead
