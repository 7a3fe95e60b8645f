// The tensors of one model, in one safetensors file or in several, as Hugging Face's folders have them:
//
//   model.safetensors                      all of them; or, where that is not there,
//   model.safetensors.index.json           an object whose "weight_map" has each tensor's file, and
//   model-00001-of-00002.safetensors, ...  the shards that it names
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tapehead/core/safetensors.h"

namespace tapehead {

/// Thread-safe; tensors outlive it.
class ShardedSafetensors {
 public:
  /// Maps the files of a folder, as SafetensorsFile::open does, and throws what that throws. ValueError, too,
  /// if there are none, if the index is damaged or names a file that is not beside it, and if index and
  /// shards disagree about what is where; all that is wrong is named.
  static ShardedSafetensors open(const std::string& folder);
  ShardedSafetensors(ShardedSafetensors&&) = default;

  /// Sorted.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return shard_of_.contains(name); }
  /// What SafetensorsFile::tensor gives and throws.
  Tensor tensor(const std::string& name) const;

 private:
  explicit ShardedSafetensors(std::string folder) : folder_(std::move(folder)) {}

  std::string folder_;
  std::vector<std::string> names_;
  std::map<std::string, SafetensorsFile> shards_;
  std::map<std::string, const SafetensorsFile*> shard_of_;  // nodes of `shards_`, which stay where they are
};

}  // namespace tapehead
