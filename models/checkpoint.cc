#include "tapehead/models/checkpoint.h"

#include "tapehead/models/checkpoint_tensors.h"

namespace tapehead {

void save_checkpoint(const std::string& path, const TrainState& state, const LanguageModel& model,
                     const Optimizer* optimizer) {
  write_checkpoint(path, to_json(state), model.parameters(), optimizer);
}

TrainState read_train_state(const std::string& path) {
  return CheckpointTensors(path).parse_state(parse_train_state);
}

void load_tensors(const std::string& path, const LanguageModel& model, Optimizer* optimizer) {
  const CheckpointTensors file(path);
  const TrainState state = file.parse_state(parse_train_state);
  file.load(model.parameters(), optimizer);
  if (optimizer) optimizer->set_steps(state.optimizer_steps);
}

ParameterList read_weights(const std::string& path, const LanguageModel& model) {
  const CheckpointTensors file(path);
  file.parse_state(parse_train_state);  // throws if it is no model's
  ParameterList weights;
  for (const auto& [name, to] : model.parameters()) {
    const std::string master = master_name(name);
    weights.emplace_back(name, file.tensor(file.contains(master) ? master : name, to, /*any_dtype=*/true));
  }
  return weights;
}

LoadedModel load_model(const std::string& path, Device device) {
  const CheckpointTensors file(path);
  TrainState state = file.parse_state(parse_train_state);
  std::unique_ptr<LanguageModel> model = make_model(
      state.config.model, {.dtype = state.config.dtype, .device = device, .values = Initializer::unset});
  file.load(model->parameters(), nullptr);
  return {.state = std::move(state), .model = std::move(model)};
}

}  // namespace tapehead
