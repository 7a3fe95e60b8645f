#include "tapehead/models/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tapehead/core/checksum.h"
#include "tapehead/core/file.h"
#include "tapehead/core/safetensors.h"

namespace tapehead {

using Json = nlohmann::ordered_json;

static constexpr const char* kState = "tapehead";       // keys of the metadata
static constexpr const char* kChecksums = "checksums";  //
static constexpr const char* kExtension = ".safetensors";
static constexpr const char* kOptimizer = "optimizer.";

static std::string_view bytes_of(const Tensor& dense) {
  return {static_cast<const char*>(dense.raw_data()), static_cast<size_t>(dense.bytes())};
}

// ---- Writing

void save_checkpoint(const std::string& path, const TrainState& state, const LanguageModel& model,
                     const Optimizer* optimizer) {
  check<ValueError>(path.ends_with(kExtension), "[checkpoint] a checkpoint's path ends in {}, unlike {}",
                    kExtension, path);
  ParameterList tensors = model.parameters();
  if (optimizer) {
    for (const auto& [name, tensor] : optimizer->state()) tensors.emplace_back(kOptimizer + name, tensor);
  }
  const std::string json = to_json(state);
  Json checksums = {{kState, checksum(json)}};
  for (const auto& [name, tensor] : tensors)
    checksums[name] = checksum(bytes_of(tensor.to(Device{}).contiguous()));
  write_safetensors(path, tensors, {{kState, json}, {kChecksums, checksums.dump()}});
  write_file_atomically(path.substr(0, path.size() - std::string_view(kExtension).size()) + ".json",
                        json + "\n");
}

// ---- Reading

namespace {

class CheckpointFile {
 public:
  explicit CheckpointFile(const std::string& path) : path_(path), file_(SafetensorsFile::open(path)) {
    const auto state = file_.metadata().find(kState), checksums = file_.metadata().find(kChecksums);
    check<ValueError>(
        state != file_.metadata().end(),
        "[checkpoint] {} holds tensors, but is no checkpoint of tapehead: its metadata has no entry \"{}\"",
        path, kState);
    // Files of version 1 have no checksums.
    if (checksums != file_.metadata().end()) {
      checksums_ = Json::parse(checksums->second, nullptr, /*allow_exceptions=*/false);
      verify(kState, "its state", state->second);
    }
    try {
      state_ = parse_train_state(state->second);
    } catch (const ValueError& e) {
      fail<ValueError>("[checkpoint] {}: {}", path, e.what());
    }
  }

  const TrainState& state() const { return state_; }

  const std::string& path() const { return path_; }
  bool contains(const std::string& name) const { return file_.contains(name); }
  bool has_optimizer() const {
    return std::ranges::any_of(file_.names(), [](const auto& name) { return name.starts_with(kOptimizer); });
  }

  /// The tensor `name`, for the model's `to`, which has another dtype only if `any_dtype`.
  Tensor tensor(const std::string& name, const Tensor& to, bool any_dtype = false) const {
    check<ValueError>(file_.contains(name),
                      "[checkpoint] {} has no tensor {}: it is a checkpoint of another model", path_, name);
    const Tensor from = file_.tensor(name);
    check<ValueError>(
        from.shape() == to.shape() && (any_dtype || from.dtype() == to.dtype()),
        "[checkpoint] tensor {} of {} is {} of shape {}, but the model's is {} of shape {}: it is a "
        "checkpoint of another model",
        name, path_, from.dtype(), from.shape(), to.dtype(), to.shape());
    if (!checksums_.is_null()) verify(name, "tensor " + name, bytes_of(from));
    check<ValueError>(device_runtime(from.device()).all_finite(from),
                      "[checkpoint] tensor {} of {} holds a NaN or an infinity", name, path_);
    return from;
  }

 private:
  void verify(const std::string& key, const std::string& what, std::string_view bytes) const {
    const bool known = checksums_.is_object() && checksums_.contains(key);
    check<ValueError>(known && checksums_.at(key) == checksum(bytes),
                      "[checkpoint] {} is damaged: {} {}; another checkpoint of the run may be whole", path_,
                      what, known ? "does not match its checksum" : "has no checksum");
  }

  std::string path_;
  SafetensorsFile file_;
  Json checksums_;
  TrainState state_;
};

}  // namespace

static void load_tensors(const CheckpointFile& file, const LanguageModel& model, const Optimizer* optimizer) {
  std::vector<std::pair<Tensor, Tensor>> copies;  // to, from
  const auto find = [&](const std::string& prefix, const ParameterList& list) {
    for (const auto& [name, to] : list) copies.emplace_back(to, file.tensor(prefix + name, to));
  };
  find("", model.parameters());
  if (optimizer) {
    check<ValueError>(
        optimizer->state().empty() || file.has_optimizer(),
        "[checkpoint] {} holds a model without an optimiser's state: no run goes on from it, but one can "
        "begin with it",
        file.path());
    find(kOptimizer, optimizer->state());
  }
  const NoGradGuard no_grad;
  for (auto& [to, from] : copies) to.copy_from(from);
}

TrainState read_train_state(const std::string& path) { return CheckpointFile(path).state(); }

void load_tensors(const std::string& path, const LanguageModel& model, Optimizer* optimizer) {
  const CheckpointFile file(path);
  load_tensors(file, model, optimizer);
  if (optimizer) optimizer->set_steps(file.state().optimizer_steps);
}

ParameterList read_weights(const std::string& path, const LanguageModel& model) {
  const CheckpointFile file(path);
  ParameterList weights;
  for (const auto& [name, to] : model.parameters()) {
    const std::string master = std::string(kOptimizer) + "master." + name;
    weights.emplace_back(name, file.tensor(file.contains(master) ? master : name, to, /*any_dtype=*/true));
  }
  return weights;
}

LoadedModel load_model(const std::string& path, Device device) {
  const CheckpointFile file(path);
  const TrainConfig& config = file.state().config;
  std::unique_ptr<LanguageModel> model = make_model(config.model, 0, config.dtype, device);
  load_tensors(file, *model, nullptr);
  return {.state = file.state(), .model = std::move(model)};
}

}  // namespace tapehead
