// The safetensors format: named tensors and string metadata in one file, readable without running anything.
//
// A file is the header's length (8 bytes, little-endian), the header (a JSON object of name -> dtype, shape
// and data_offsets, and optionally "__metadata__" of strings), and the data, which the entries cover exactly
// (https://github.com/huggingface/safetensors, "Format").
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tapehead/core/tensor.h"

namespace tapehead {

using SafetensorsMetadata = std::map<std::string, std::string>;

/// A file that was read. Thread-safe; tensors outlive it.
class SafetensorsFile {
 public:
  /// Maps the file; tensors refer to the mapping, and their pages come in as they are touched. Writing to one
  /// changes this process's private copy, never the file, which must not shrink while its tensors live.
  ///
  /// Throws ValueError that names the file, the entry and the broken rule for anything that the format does
  /// not allow, and read_file's errors.
  static SafetensorsFile open(const std::string& path);

  /// The same for bytes in memory; `name` stands for the path in errors.
  static SafetensorsFile parse(std::string bytes, std::string name = "bytes");

  /// In the header's order.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return tensors_.contains(name) || foreign_.contains(name); }
  /// On the host, contiguous. All calls for one name share storage. Throws ValueError if there is none,
  /// TypeError for a dtype other than F64, F32, F16, BF16, I64 and I32.
  Tensor tensor(const std::string& name) const;
  const SafetensorsMetadata& metadata() const { return metadata_; }

 private:
  SafetensorsFile() = default;
  static SafetensorsFile read(const std::string& path, const std::shared_ptr<void>& owner, char* bytes,
                              int64_t size);

  std::string path_;
  std::vector<std::string> names_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> foreign_;  // the dtypes that we have no name for, by entry
  SafetensorsMetadata metadata_;
};

/// Writes the tensors, listed in the given order, from any device and of any strides. Every entry is aligned
/// for its dtype. The file appears whole or not at all (AtomicFile). Throws ValueError that names the entry
/// for an undefined tensor, a name used twice, "__metadata__", or text that is not UTF-8; SystemError if the
/// file cannot be written.
void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const SafetensorsMetadata& metadata = {});

}  // namespace tapehead
