#include "tapehead/models/train_state.h"

#include "tapehead/models/state_json.h"

namespace tapehead {

static void visit(auto visitor, ModelConfig& c) {
  visitor.object("model", [&](auto field) {
    field.later("architecture", c.architecture);
    field("vocab_size", c.vocab_size);
    field("n_layer", c.n_layer);
    field("n_head", c.n_head);
    field("n_embd", c.n_embd);
    field("n_positions", c.n_positions);
    field("dropout", c.dropout);
    field("layer_norm_epsilon", c.norm_epsilon);
    field.later("n_inner", c.n_inner);
    field.later("n_kv_head", c.n_kv_head);
    field.later("head_dim", c.head_dim);
    field.later("rope_theta", c.rope_theta);
    field.later("rope_type", c.rope_scaling.type);
    field.later("rope_factor", c.rope_scaling.factor);
    field.later("rope_low_freq_factor", c.rope_scaling.low_freq_factor);
    field.later("rope_high_freq_factor", c.rope_scaling.high_freq_factor);
    field.later("rope_original_max_position_embeddings", c.rope_scaling.original_max_position_embeddings);
    field.later("tied_head", c.tied_head);
    field.later("attention_bias", c.attention_bias);
    field.later("attention_out_bias", c.attention_out_bias);
    field.later("mlp_bias", c.mlp_bias);
  });
}

static void visit(auto visitor, TrainState& state) {
  visit_progress(visitor, state.progress, state.optimizer_steps);
  visitor.object("position", [&](auto field) {
    field("epoch", state.position.epoch);
    field("window", state.position.window);
    field("training_tokens", state.training_tokens);
  });
  visitor.object("dropout_numbers", [&](auto field) {
    field("seed", state.numbers.dropout.seed);
    field("next", state.numbers.dropout.next);
  });
  visitor.later("filter_seed", state.numbers.filter.seed);
  visitor.later("filter_next", state.numbers.filter.next);
  visitor.later("tokenizer_hash", state.tokenizer_hash);
  TrainConfig& c = state.config;
  visitor("tokenizer", c.tokenizer);
  visit(visitor, c.model);
  visitor.object("training", [&](auto field) {
    field.later("dtype", c.dtype);
    visit_run(field, c);
    field("micro_batch_size", c.micro_batch_size);
    field.later("freeze", c.freeze);
    field.later("recompute_activations", c.recompute_activations);
    field.later("document_mask", c.document_mask);
  });
  visit_head(visitor, c.head);
}

std::string to_json(const TrainState& state) {
  return write_state(StateKind::model, [copy = state](StateWriter writer) mutable { visit(writer, copy); });
}

TrainState parse_train_state(const std::string& json) {
  TrainState state;
  read_state(json, StateKind::model, [&](StateReader reader, int64_t version) {
    visit(reader, state);
    if (version == 1) state.optimizer_steps = state.progress.step;
  });
  state.config.validate();
  return state;
}

}  // namespace tapehead
