// A run on disk: one safetensors file that holds everything, so that no two files have to belong together.
//
//   NAME.safetensors   parameters under their names; the optimiser's state as optimizer.WHAT.NAME
//                      (Optimizer::state: first and second moments, master weights, ...); in the
//                      metadata, the rest as JSON under "tapehead" (state_json.h), and under "checksums"
//                      the XXH3 of that and of every tensor, as JSON
//   NAME.json          a copy of that JSON to look at; never read back
//
// Both are written to temporary files, synced and renamed: after a crash the old checkpoint or the new one is
// there.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "tapehead/core/safetensors.h"
#include "tapehead/models/optimizer.h"

namespace tapehead {

/// Writes a checkpoint; `optimizer` may be null: a model to begin from. Throws ValueError if `path` does not
/// end in .safetensors, SystemError if the machine refuses; then the old checkpoint, if any, is untouched.
void write_checkpoint(const std::string& path, const std::string& state, const ParameterList& parameters,
                      const Optimizer* optimizer);

/// A checkpoint to read from. Its errors are ValueErrors that name the file and what is wrong with it.
class CheckpointTensors {
 public:
  /// Throws if the file is missing, cut short, no checkpoint of this program, or its state damaged.
  explicit CheckpointTensors(const std::string& path);

  const std::string& path() const { return path_; }
  /// The rest: what `parse` makes of its JSON, with the file's name before its errors.
  auto parse_state(auto&& parse) const {
    try {
      return parse(state_);
    } catch (const ValueError& e) {
      fail<ValueError>("[checkpoint] {}: {}", path_, e.what());
    }
  }
  bool contains(const std::string& name) const { return file_.contains(name); }

  /// The tensor `name`, for a parameter `to`. Throws if it is missing, damaged, not
  /// finite, of another shape (both are stated) or, unless `any_dtype`, of another dtype.
  Tensor tensor(const std::string& name, const Tensor& to, bool any_dtype = false) const;

  /// Copies all of `parameters` and, if `optimizer` is given, its state. Throws what tensor()
  /// does, and if `optimizer` is given for a model to begin from; then nothing was changed.
  void load(const ParameterList& parameters, const Optimizer* optimizer) const;

 private:
  void verify(const std::string& key, const std::string& what, std::string_view bytes) const;
  bool has_optimizer() const;

  std::string path_;
  SafetensorsFile file_;
  std::string state_;
  std::optional<std::map<std::string, std::string>> checksums_;  // files of version 1 have none
};

/// The name under which a checkpoint holds a master weight.
std::string master_name(const std::string& parameter);

}  // namespace tapehead
