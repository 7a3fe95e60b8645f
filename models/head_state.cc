#include "tapehead/models/head_state.h"

#include "tapehead/models/checkpoint_tensors.h"
#include "tapehead/models/state_json.h"

namespace tapehead {

static void visit(auto visitor, HeadTrainState& state) {
  visit_progress(visitor, state.progress, state.optimizer_steps);
  visitor.object("position", [&](auto field) {
    field("epoch", state.epoch);
    field("row", state.next_row);
  });
  visitor.object("filter_numbers", [&](auto field) {
    field("seed", state.filter.seed);
    field("next", state.filter.next);
  });
  visitor.object("data", [&](auto field) {
    field("rows", state.data.rows);
    field("features", state.data.features);
    field("dtype", state.data.dtype);
    field("targets", state.data.targets);
  });
  HeadTrainConfig& c = state.config;
  visitor.object("training", [&](auto field) {
    field("classes", c.classes);
    field("bias", c.bias);
    field("held_out", c.held_out);
    visit_run(field, c);
  });
  visit_head(visitor, c.head);
}

std::string to_json(const HeadTrainState& state) {
  return write_state(StateKind::head, [copy = state](StateWriter writer) mutable { visit(writer, copy); });
}

HeadTrainState parse_head_state(const std::string& json) {
  HeadTrainState state;
  read_state(json, StateKind::head, [&](StateReader reader, int64_t) { visit(reader, state); });
  state.config.validate();
  return state;
}

HeadTrainState read_head_state(const std::string& path) {
  return CheckpointTensors(path).parse_state(parse_head_state);
}

}  // namespace tapehead
