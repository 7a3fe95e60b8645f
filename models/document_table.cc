#include "tapehead/models/document_table.h"

#include <bit>
#include <cstring>
#include <utility>

#include "tapehead/core/error.h"

namespace tapehead {
namespace {

static_assert(std::endian::native == std::endian::little,
              "document tables are read and written as they stand in memory");

struct Header {
  char magic[8];
  int64_t version, size, prompts, tokens;
};

constexpr int64_t kVersion = 1;
constexpr int64_t kHeader = sizeof(Header);
constexpr int64_t kEntry = 2 * sizeof(int64_t);

std::string header_bytes(int64_t size, int64_t prompts, int64_t tokens) {
  Header header{{}, kVersion, size, prompts, tokens};
  DocumentTable::kMagic.copy(header.magic, sizeof(header.magic));
  return {reinterpret_cast<const char*>(&header), sizeof(header)};
}

}  // namespace

DocumentTable DocumentTable::open(const std::string& path) {
  MappedFile file(path);
  const auto length = std::ssize(file.bytes());
  Header header{};
  if (length >= kHeader) std::memcpy(&header, file.bytes().data(), sizeof(header));
  check<ValueError>(std::string_view(header.magic, sizeof(header.magic)) == kMagic,
                    "[document_table] {} is no document table: it does not begin with {} and a header of {} "
                    "bytes",
                    path, kMagic, kHeader);
  check<ValueError>(header.version == kVersion,
                    "[document_table] {} has version {}, and this program reads version {}", path,
                    header.version, kVersion);
  // The division keeps a damaged size from overflowing.
  const int64_t held = (length - kHeader) / kEntry;
  check<ValueError>(
      header.size == held && (length - kHeader) % kEntry == 0 && 0 <= header.prompts &&
          header.prompts <= held && header.tokens >= held,
      "[document_table] {} is damaged: its header promises {} documents, {} with a prompt, of {} "
      "tokens, and {} bytes follow it",
      path, header.size, header.prompts, header.tokens, length - kHeader);
  return DocumentTable(path, std::move(file), header.size, header.prompts, header.tokens);
}

DocumentTable::DocumentTable(std::string path, MappedFile file, int64_t size, int64_t prompts, int64_t tokens)
    : path_(std::move(path)), file_(std::move(file)), size_(size), prompts_(prompts), tokens_(tokens) {}

int64_t DocumentTable::word(int64_t index) const {
  int64_t value;
  std::memcpy(&value, file_.bytes().data() + kHeader + index * static_cast<int64_t>(sizeof(value)),
              sizeof(value));
  return value;
}

DocumentPlace DocumentTable::operator[](int64_t index) const {
  const DocumentPlace place = {word(2 * index), word(2 * index + 1),
                               index + 1 < size_ ? word(2 * index + 2) : tokens_};
  check<ValueError>(0 <= place.begin && place.begin <= place.first_target && place.first_target < place.end &&
                        place.end <= tokens_,
                    "[document_table] {} is damaged: document {} has tokens {} to {} of {}, from {} on to "
                    "learn",
                    path_, index, place.begin, place.end, tokens_, place.first_target);
  return place;
}

int64_t DocumentTable::find(int64_t position) const {
  int64_t first = 0, last = size_ - 1;  // the document is one of these
  while (first < last) {
    const int64_t middle = first + (last - first + 1) / 2;
    if ((*this)[middle].begin <= position) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  return first;
}

DocumentTableWriter::DocumentTableWriter(const std::string& path) : file_(path) {
  file_.write(header_bytes(0, 0, 0));
}

void DocumentTableWriter::append(int64_t tokens, int64_t prompt) {
  check<ValueError>(
      0 <= prompt && prompt < tokens,
      "[document_table] document {} has {} tokens, {} of them a prompt: at least one is to learn", size_,
      tokens, prompt);
  waiting_.insert(waiting_.end(), {tokens_, tokens_ + prompt});
  ++size_;
  prompts_ += prompt > 0;
  tokens_ += tokens;
  if (waiting_.size() >= size_t{1} << 16) flush();
}

void DocumentTableWriter::flush() {
  file_.write({reinterpret_cast<const char*>(waiting_.data()), waiting_.size() * sizeof(int64_t)});
  waiting_.clear();
}

void DocumentTableWriter::commit() {
  flush();
  file_.overwrite(0, header_bytes(size_, prompts_, tokens_));
  file_.commit();
}

}  // namespace tapehead
