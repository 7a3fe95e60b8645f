#include "tapehead/core/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>

#include "tapehead/core/file.h"

namespace tapehead {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian, and data are used as they are");

using nlohmann::json;

namespace {

constexpr int64_t kMaxHeader = 100'000'000;  // the format's limit
constexpr int64_t kLengthBytes = 8;
constexpr const char* kMetadata = "__metadata__";

constexpr std::pair<std::string_view, DType> kDTypes[] = {{"F64", DType::f64}, {"F32", DType::f32},
                                                          {"F16", DType::f16}, {"BF16", DType::bf16},
                                                          {"I64", DType::i64}, {"I32", DType::i32}};

struct Entry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> offsets;  // begin and end, in bytes from the data's begin
};

// Reads the header as it is parsed, by nlohmann's SAX interface: nothing is built but entries, nesting beyond
// the format's three levels ends the parse, and repeated keys, which a JSON object would swallow, are seen.
class HeaderReader {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}

  std::vector<Entry> entries;
  SafetensorsMetadata metadata;

  bool start_object(size_t) {
    if (level_ == kOutside) {
      level_ = kHeader;
    } else if (level_ == kHeader) {
      level_ = in_metadata_ ? kStrings : kEntry;
      fields_.clear();
    } else {
      refuse("an object");
    }
    return true;
  }

  bool key(std::string& text) {
    if (level_ == kHeader) {
      check<ValueError>(names_.insert(text).second, "[safetensors] {}: the header has the entry \"{}\" twice",
                        path_, text);
      in_metadata_ = text == kMetadata;
      if (!in_metadata_) entries.push_back({.name = text, .dtype = {}, .shape = {}, .offsets = {}});
    } else {
      check<ValueError>(fields_.insert(text).second, "[safetensors] {}: {} has \"{}\" twice", path_, where(),
                        text);
      check<ValueError>(level_ == kStrings || text == "dtype" || text == "shape" || text == "data_offsets",
                        "[safetensors] {}: {} has a field \"{}\": an entry has dtype, shape and data_offsets",
                        path_, where(), text);
      field_ = text;
    }
    return true;
  }

  bool end_object() {
    if (level_ == kEntry) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        check<ValueError>(fields_.contains(field), "[safetensors] {}: {} has no {}", path_, where(), field);
      }
      check<ValueError>(entries.back().offsets.size() == 2,
                        "[safetensors] {}: {} has {} data_offsets, not begin and end", path_, where(),
                        entries.back().offsets.size());
    }
    level_ = level_ == kHeader ? kOutside : kHeader;
    return true;
  }

  bool start_array(size_t) {
    if (level_ != kEntry || field_ == "dtype") refuse("an array");
    level_ = kList;
    return true;
  }

  bool end_array() {
    level_ = kEntry;
    return true;
  }

  bool string(std::string& text) {
    if (level_ == kStrings) {
      metadata[field_] = text;
    } else if (level_ == kEntry && field_ == "dtype") {
      entries.back().dtype = text;
    } else {
      refuse("a string");
    }
    return true;
  }

  bool number_unsigned(uint64_t number) {
    if (level_ != kList) refuse("a number");
    check<ValueError>(number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
                      "[safetensors] {}: {} has {} in its {}: it does not fit 63 bits", path_, where(),
                      number, field_);
    (field_ == "shape" ? entries.back().shape : entries.back().offsets)
        .push_back(static_cast<int64_t>(number));
    return true;
  }

  bool number_integer(int64_t number) { refuse(fmt::format("the negative number {}", number)); }
  bool number_float(double, const std::string& text) {
    refuse(fmt::format("{}, which is no 64-bit integer,", text));
  }
  bool boolean(bool value) { refuse(value ? "true" : "false"); }
  bool null() { refuse("null"); }
  bool binary(json::binary_t&) { refuse("bytes"); }

  bool parse_error(size_t position, const std::string&, const json::exception&) {
    fail<ValueError>("[safetensors] {}: the header is not JSON: wrong at its byte {}", path_, position);
  }

 private:
  enum Level { kOutside, kHeader, kEntry, kList, kStrings };

  std::string where() const {
    return in_metadata_ ? std::string(kMetadata) : fmt::format("entry \"{}\"", entries.back().name);
  }

  [[noreturn]] void refuse(std::string_view found) const {
    if (level_ == kHeader)
      fail<ValueError>("[safetensors] {}: {} is {}, not an object", path_, where(), found);
    if (level_ == kStrings)
      fail<ValueError>("[safetensors] {}: {} has {} under \"{}\": values are strings", path_, where(), found,
                       field_);
    const char* rule = field_ == "dtype"   ? "dtype is a string"
                       : field_ == "shape" ? "shape is an array of integers >= 0"
                                           : "data_offsets is an array of two integers >= 0";
    fail<ValueError>("[safetensors] {}: {} has {} as or in its {}: {}", path_, where(), found, field_, rule);
  }

  const std::string& path_;
  Level level_ = kOutside;
  bool in_metadata_ = false;
  std::string field_;             // the key being read inside an entry or the metadata
  std::set<std::string> names_;   // keys of the header so far
  std::set<std::string> fields_;  // keys of the inner object so far
};

std::optional<DType> dtype_of(const Entry& entry) {
  for (const auto& [text, dtype] : kDTypes) {
    if (entry.dtype == text) return dtype;
  }
  return std::nullopt;
}

std::string_view text_of(DType dtype) {
  return std::find_if(std::begin(kDTypes), std::end(kDTypes),
                      [&](const auto& d) { return d.second == dtype; })
      ->first;
}

Shape shape_of(const Entry& entry, const std::string& path) {
  try {
    return Shape(entry.shape);
  } catch (const ValueError& error) {
    fail<ValueError>("[safetensors] {}: entry \"{}\": {}", path, entry.name, error.what());
  }
}

// The entries cover the data exactly: each begins where the one before it ended, and the last ends with them.
void check_layout(const std::vector<Entry>& entries, int64_t data_bytes, const std::string& path) {
  std::vector<const Entry*> by_offset;
  for (const Entry& e : entries) {
    check<ValueError>(e.offsets[0] <= e.offsets[1],
                      "[safetensors] {}: entry \"{}\" ends at byte {}, before its begin at {}", path, e.name,
                      e.offsets[1], e.offsets[0]);
    check<ValueError>(e.offsets[1] <= data_bytes,
                      "[safetensors] {}: entry \"{}\" ends at byte {} of data, but there are {}: the file is "
                      "cut short or damaged",
                      path, e.name, e.offsets[1], data_bytes);
    by_offset.push_back(&e);
  }
  std::sort(by_offset.begin(), by_offset.end(),
            [](const Entry* a, const Entry* b) { return a->offsets < b->offsets; });
  int64_t covered = 0;
  for (const Entry* e : by_offset) {
    check<ValueError>(
        e->offsets[0] >= covered,
        "[safetensors] {}: entry \"{}\" begins at byte {} of data and overlaps another that ends at {}", path,
        e->name, e->offsets[0], covered);
    check<ValueError>(e->offsets[0] == covered,
                      "[safetensors] {}: entry \"{}\" begins at byte {} of data, but the one before it ends "
                      "at {}: no gap is allowed",
                      path, e->name, e->offsets[0], covered);
    covered = e->offsets[1];
  }
  check<ValueError>(covered == data_bytes,
                    "[safetensors] {}: the entries end at byte {} of data, but {} bytes follow the header",
                    path, covered, data_bytes);
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  const auto mapping = std::make_shared<MappedFile>(path);
  const std::span<std::byte> bytes = mapping->private_bytes();
  return read(path, mapping, reinterpret_cast<char*>(bytes.data()), static_cast<int64_t>(bytes.size()));
}

SafetensorsFile SafetensorsFile::parse(std::string bytes, std::string name) {
  const auto owner = std::make_shared<std::string>(std::move(bytes));
  return read(name, owner, owner->data(), static_cast<int64_t>(owner->size()));
}

SafetensorsFile SafetensorsFile::read(const std::string& path, const std::shared_ptr<void>& owner,
                                      char* bytes, int64_t size) {
  check<ValueError>(size >= kLengthBytes, "[safetensors] {}: {} bytes are too few for a header", path, size);
  uint64_t length;
  std::memcpy(&length, bytes, sizeof length);
  check<ValueError>(length <= kMaxHeader, "[safetensors] {}: a header of {} bytes: at most {} are allowed",
                    path, length, kMaxHeader);
  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(length);
  check<ValueError>(data_begin <= size,
                    "[safetensors] {}: a header of {} bytes in a file of {}: it is cut short or no such file",
                    path, length, size);
  check<ValueError>(length > 0 && bytes[kLengthBytes] == '{',
                    "[safetensors] {}: the header does not begin with {{", path);
  // The parser would take it for the end, and what follows for nothing.
  check<ValueError>(std::memchr(bytes + kLengthBytes, '\0', length) == nullptr,
                    "[safetensors] {}: the header is not JSON: it holds a zero byte", path);
  HeaderReader header(path);
  json::sax_parse(bytes + kLengthBytes, bytes + data_begin, &header);
  check_layout(header.entries, size - data_begin, path);

  SafetensorsFile file;
  file.path_ = path;
  file.metadata_ = std::move(header.metadata);
  for (const Entry& entry : header.entries) {
    const Shape shape = shape_of(entry, path);
    file.names_.push_back(entry.name);
    const std::optional<DType> known = dtype_of(entry);
    if (!known) {
      // It may be one that nobody asks for.
      file.foreign_.emplace(entry.name, entry.dtype);
      continue;
    }
    const DType dtype = *known;
    const int64_t entry_bytes = entry.offsets[1] - entry.offsets[0];
    check<ValueError>(
        entry_bytes % size_of(dtype) == 0 && entry_bytes / size_of(dtype) == shape.numel(),
        "[safetensors] {}: entry \"{}\" of shape {} and dtype {} has {} bytes, which does not fit", path,
        entry.name, shape, entry.dtype, entry_bytes);
    char* data = bytes + data_begin + entry.offsets[0];
    Tensor tensor;
    if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(size_of(dtype)) == 0) {
      tensor = Tensor::over(std::make_shared<Storage>(owner, data, entry_bytes), shape, dtype);
    } else {
      // Only other programs write entries that stand askew.
      tensor = Tensor(shape, dtype, Device{});
      if (entry_bytes > 0) std::memcpy(tensor.mutable_raw_data(), data, static_cast<size_t>(entry_bytes));
    }
    file.tensors_.emplace(entry.name, std::move(tensor));
  }
  return file;
}

Tensor SafetensorsFile::tensor(const std::string& name) const {
  if (const auto foreign = foreign_.find(name); foreign != foreign_.end()) {
    fail<TypeError>(
        "[safetensors] {}: entry \"{}\" has dtype {}: supported are F64, F32, F16, BF16, I64 and I32", path_,
        name, foreign->second);
  }
  const auto found = tensors_.find(name);
  check<ValueError>(found != tensors_.end(), "[safetensors] {}: there is no entry \"{}\" among its {}", path_,
                    name, names_.size());
  return found->second.detach();
}

// Text as a JSON string.
static std::string quote(const std::string& text, const std::string& path) {
  try {
    return json(text).dump();
  } catch (const json::type_error&) {
    fail<ValueError>("[safetensors] {}: \"{}\" is not UTF-8, as names and metadata are", path, text);
  }
}

void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const SafetensorsMetadata& metadata) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    check<ValueError>(tensor.defined(), "[safetensors] {}: entry \"{}\" is an undefined tensor", path, name);
    check<ValueError>(name != kMetadata, "[safetensors] {}: the format keeps the name \"{}\" for itself",
                      path, name);
    check<ValueError>(names.insert(name).second, "[safetensors] {}: the entry \"{}\" is given twice", path,
                      name);
  }
  // Widest elements first: so each entry begins at a multiple of its element's size.
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return size_of(tensors[a].second.dtype()) > size_of(tensors[b].second.dtype());
  });
  std::vector<int64_t> begins(tensors.size());
  int64_t covered = 0;
  for (const size_t i : order) {
    begins[i] = covered;
    covered += tensors[i].second.bytes();
  }

  std::vector<std::string> members;
  if (!metadata.empty()) {
    std::vector<std::string> strings;
    for (const auto& [key, value] : metadata) strings.push_back(quote(key, path) + ":" + quote(value, path));
    members.push_back(fmt::format("\"{}\":{{{}}}", kMetadata, fmt::join(strings, ",")));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    members.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                  quote(name, path), text_of(tensor.dtype()), fmt::join(tensor.shape(), ","),
                                  begins[i], begins[i] + tensor.bytes()));
  }
  std::string header = fmt::format("{{{}}}", fmt::join(members, ","));
  header.resize((header.size() + 7) / 8 * 8, ' ');
  check<ValueError>(static_cast<int64_t>(header.size()) <= kMaxHeader,
                    "[safetensors] {}: a header of {} bytes: at most {} are allowed", path, header.size(),
                    kMaxHeader);

  const uint64_t length = header.size();
  AtomicFile file(path);
  file.write({reinterpret_cast<const char*>(&length), sizeof length});
  file.write(header);
  for (const size_t i : order) {
    const Tensor dense = tensors[i].second.to(Device{}).contiguous();
    file.write({static_cast<const char*>(dense.raw_data()), static_cast<size_t>(dense.bytes())});
  }
  file.commit();
}

}  // namespace tapehead
