#include "tapehead/models/checkpoint_tensors.h"

#include <algorithm>

#include "tapehead/core/checksum.h"
#include "tapehead/core/file.h"
#include "tapehead/core/json.h"

namespace tapehead {

static constexpr const char* kState = "tapehead";       // keys of the metadata
static constexpr const char* kChecksums = "checksums";  //
static constexpr std::string_view kExtension = ".safetensors";
static constexpr const char* kOptimizer = "optimizer.";

std::string master_name(const std::string& parameter) {
  return fmt::format("{}master.{}", kOptimizer, parameter);
}

static std::string_view bytes_of(const Tensor& dense) {
  return {static_cast<const char*>(dense.raw_data()), static_cast<size_t>(dense.bytes())};
}

// ---- Writing

void write_checkpoint(const std::string& path, const std::string& state, const ParameterList& parameters,
                      const Optimizer* optimizer) {
  check<ValueError>(path.ends_with(kExtension), "[checkpoint] a checkpoint's path ends in {}, unlike {}",
                    kExtension, path);
  ParameterList tensors = parameters;
  if (optimizer) {
    for (const auto& [name, tensor] : optimizer->state()) tensors.emplace_back(kOptimizer + name, tensor);
  }
  Json checksums = {{kState, checksum(state)}};
  for (const auto& [name, tensor] : tensors)
    checksums[name] = checksum(bytes_of(tensor.to(Device{}).contiguous()));
  write_safetensors(path, tensors, {{kState, state}, {kChecksums, checksums.dump()}});
  write_file_atomically(path.substr(0, path.size() - kExtension.size()) + ".json", state + "\n");
}

// ---- Reading

CheckpointTensors::CheckpointTensors(const std::string& path)
    : path_(path), file_(SafetensorsFile::open(path)) {
  const auto state = file_.metadata().find(kState), checksums = file_.metadata().find(kChecksums);
  check<ValueError>(
      state != file_.metadata().end(),
      "[checkpoint] {} holds tensors, but is no checkpoint of tapehead: its metadata has no entry \"{}\"",
      path, kState);
  state_ = state->second;
  if (checksums == file_.metadata().end()) return;
  const Json listed = parse_json(checksums->second);
  checksums_.emplace();
  for (const auto& [key, sum] : listed.items()) {
    if (sum.is_string()) checksums_->emplace(key, sum);
  }
  verify(kState, "its state", state_);
}

void CheckpointTensors::verify(const std::string& key, const std::string& what,
                               std::string_view bytes) const {
  const auto known = checksums_->find(key);
  const bool found = known != checksums_->end();
  check<ValueError>(found && known->second == checksum(bytes),
                    "[checkpoint] {} is damaged: {} {}; another checkpoint of the run may be whole", path_,
                    what, found ? "does not match its checksum" : "has no checksum");
}

bool CheckpointTensors::has_optimizer() const {
  return std::ranges::any_of(file_.names(), [](const auto& name) { return name.starts_with(kOptimizer); });
}

Tensor CheckpointTensors::tensor(const std::string& name, const Tensor& to, bool any_dtype) const {
  check<ValueError>(file_.contains(name),
                    "[checkpoint] {} has no tensor {}: it is a checkpoint of another model", path_, name);
  const Tensor from = file_.tensor(name);
  check<ValueError>(
      from.shape() == to.shape() && (any_dtype || from.dtype() == to.dtype()),
      "[checkpoint] tensor {} of {} is {} of shape {}, but the model's is {} of shape {}: it is a "
      "checkpoint of another model",
      name, path_, from.dtype(), from.shape(), to.dtype(), to.shape());
  if (checksums_) verify(name, "tensor " + name, bytes_of(from));
  check<ValueError>(device_runtime(from.device()).all_finite(from),
                    "[checkpoint] tensor {} of {} holds a NaN or an infinity", name, path_);
  return from;
}

void CheckpointTensors::load(const ParameterList& parameters, const Optimizer* optimizer) const {
  std::vector<std::pair<Tensor, Tensor>> copies;  // to, from
  const auto find = [&](const std::string& prefix, const ParameterList& list) {
    for (const auto& [name, to] : list) copies.emplace_back(to, tensor(prefix + name, to));
  };
  find("", parameters);
  if (optimizer) {
    check<ValueError>(
        optimizer->state().empty() || has_optimizer(),
        "[checkpoint] {} holds a model without an optimiser's state: no run goes on from it, but one can "
        "begin with it",
        path_);
    find(kOptimizer, optimizer->state());
  }
  const NoGradGuard no_grad;
  for (auto& [to, from] : copies) to.copy_from(from);
}

}  // namespace tapehead
