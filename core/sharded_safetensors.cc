#include "tapehead/core/sharded_safetensors.h"

#include <filesystem>
#include <set>

#include "tapehead/core/json.h"
#include "tapehead/core/problem_list.h"

namespace tapehead {
namespace {

using json = Json;

constexpr const char* kWhole = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kPickled[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};

bool exists(const std::string& path) {
  std::error_code unseen;
  return std::filesystem::exists(path, unseen);
}

// The index's file by tensor.
std::map<std::string, std::string> read_weight_map(const std::string& path) {
  const json index = read_json_object("safetensors", path);
  check<ValueError>(index.contains("weight_map") && index.at("weight_map").is_object(),
                    "[safetensors] {} has no object \"weight_map\" from tensor to file", path);
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : index.at("weight_map").items()) {
    check<ValueError>(file.is_string(),
                      "[safetensors] {}: the entry \"{}\" is no file's name, but of type {}", path, name,
                      file.type_name());
    // Nothing outside the folder is read, whatever the index says.
    const std::filesystem::path shard = file.get<std::string>();
    check<ValueError>(shard.has_filename() && shard == shard.filename() && shard != "..",
                      "[safetensors] {}: \"{}\" is in {}, but a shard stands beside its index", path, name,
                      shard.string());
    files[name] = shard.string();
  }
  return files;
}

}  // namespace

ShardedSafetensors ShardedSafetensors::open(const std::string& folder) {
  const auto path_of = [&](const std::string& name) {
    return (std::filesystem::path(folder) / name).string();
  };
  ShardedSafetensors all(folder);
  if (exists(path_of(kWhole))) {
    all.shards_.emplace(kWhole, SafetensorsFile::open(path_of(kWhole)));
  } else {
    for (const char* pickled : kPickled) {
      check<ValueError>(
          exists(path_of(kIndex)) || !exists(path_of(pickled)),
          "[safetensors] {} holds {}, a format that runs code as it is read, but no {}; load and save it "
          "with transformers, which writes one",
          folder, pickled, kWhole);
    }
    check<ValueError>(exists(path_of(kIndex)), "[safetensors] {} holds neither {} nor {}; check the path",
                      folder, kWhole, kIndex);
    const std::map<std::string, std::string> file_of = read_weight_map(path_of(kIndex));
    ProblemList problems;
    std::set<std::string> missing;
    for (const auto& [name, file] : file_of) {
      if (!all.shards_.contains(file) && exists(path_of(file))) {
        all.shards_.emplace(file, SafetensorsFile::open(path_of(file)));
      }
      const auto shard = all.shards_.find(file);
      if (shard == all.shards_.end()) {
        if (missing.insert(file).second) problems.add("the file {} is missing", file);
      } else if (!shard->second.contains(name)) {
        problems.add("{} should hold \"{}\" and does not", file, name);
      }
    }
    for (const auto& [file, shard] : all.shards_) {
      for (const std::string& name : shard.names()) {
        const auto indexed = file_of.find(name);
        if (indexed == file_of.end() || indexed->second != file) {
          problems.add("{} holds \"{}\", which the index {}", file, name,
                       indexed == file_of.end() ? "does not name" : "has in " + indexed->second);
        }
      }
    }
    check<ValueError>(problems.empty(), "[safetensors] {} does not fit its shards: {}", path_of(kIndex),
                      problems.text());
  }
  for (const auto& [file, shard] : all.shards_) {
    for (const std::string& name : shard.names()) all.shard_of_.emplace(name, &shard);
  }
  for (const auto& [name, shard] : all.shard_of_) all.names_.push_back(name);
  return all;
}

Tensor ShardedSafetensors::tensor(const std::string& name) const {
  const auto found = shard_of_.find(name);
  check<ValueError>(found != shard_of_.end(), "[safetensors] {}: there is no entry \"{}\" among its {}",
                    folder_, name, names_.size());
  return found->second->tensor(name);
}

}  // namespace tapehead
