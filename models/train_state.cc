#include "tapehead/models/train_state.h"

#include <nlohmann/json.hpp>

namespace tapehead {

using Json = nlohmann::ordered_json;

// Both directions visit the same fields, so that they cannot disagree.

namespace {

struct Writer {
  Json& json;
  template <class T>
  void operator()(const char* key, T& value) {
    json[key] = value;
  }
  void operator()(const char* key, DType& value) { json[key] = name(value); }
  void later(const char* key, auto& value) { (*this)(key, value); }
  void object(const char* key, auto&& fields) {
    Json inner = Json::object();
    fields(Writer{inner});
    json[key] = std::move(inner);
  }
  void later_object(const char* key, auto&& fields) { object(key, fields); }
};

struct Reader {
  const Json& json;
  template <class T>
  void operator()(const char* key, T& value) {
    json.at(key).get_to(value);
  }
  void operator()(const char* key, DType& value) { value = parse_dtype(json.at(key).get<std::string>()); }
  /// A field that came later: checkpoints from before have the default.
  void later(const char* key, auto& value) {
    if (json.contains(key)) (*this)(key, value);
  }
  void object(const char* key, auto&& fields) { fields(Reader{json.at(key)}); }
  void later_object(const char* key, auto&& fields) {
    if (json.contains(key)) object(key, fields);
  }
};

}  // namespace

static void visit(auto visitor, const char* key, RunningStatistics& statistics) {
  visitor.object(key, [&](auto field) {
    field("mean_sum", statistics.mean_sum);
    field("square_sum", statistics.square_sum);
    field("count", statistics.count);
  });
}

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

static void visit(auto visitor, TrainConfig& c) {
  visitor("tokenizer", c.tokenizer);
  visit(visitor, c.model);
  visitor.object("training", [&](auto field) {
    field.later("dtype", c.dtype);
    field("steps", c.steps);
    field("batch_size", c.batch_size);
    field("micro_batch_size", c.micro_batch_size);
    field.later("schedule", c.schedule);
    field("peak_lr", c.peak_lr);
    field("min_lr", c.min_lr);
    field("warmup_steps", c.warmup_steps);
    field.later("decay_steps", c.decay_steps);
    field.later("optimizer", c.optimizer.name);
    field("beta1", c.optimizer.beta1);
    field("beta2", c.optimizer.beta2);
    field("epsilon", c.optimizer.epsilon);
    field.later("momentum", c.optimizer.momentum);
    field.later("nesterov", c.optimizer.nesterov);
    field("weight_decay", c.optimizer.weight_decay);
    field("clip_norm", c.clip_norm);
    field.later("skip_z_score", c.skip_z_score);
    field("eval_interval", c.eval_interval);
    field("save_interval", c.save_interval);
    field.later("keep", c.keep);
    field.later("keep_best", c.keep_best);
    field.later("freeze", c.freeze);
    field.later("recompute_activations", c.recompute_activations);
    field.later("document_mask", c.document_mask);
    field("seed", c.seed);
  });
  visitor.object("head", [&](auto field) {
    field("chunking_method", c.head.chunking_method);
    field("batch_chunk_size", c.head.batch_chunk_size);
    field("acc_policy", c.head.acc_policy);
    field("recompute", c.head.recompute);
    field("label_smoothing", c.head.label_smoothing);
    field("z_loss", c.head.z_loss);
    field.later("gradient_filter", c.head.gradient_filter);
  });
}

static void visit(auto visitor, TrainState& state) {
  TrainProgress& progress = state.progress;
  visitor("step", progress.step);
  visitor.later_object("progress", [&](auto field) {
    field("optimizer_steps", state.optimizer_steps);
    visit(field, "smoothed_loss", progress.loss);
    visit(field, "guard_loss", progress.guard.loss);
    visit(field, "guard_norm", progress.guard.norm);
    field("skipped_in_a_row", progress.guard.in_a_row);
    field("evaluated_step", progress.evaluated_step);
    field("best_step", progress.best_step);
    field("best_loss", progress.best_loss);
  });
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
  visit(visitor, state.config);
}

std::string to_json(const TrainState& state) {
  TrainState copy = state;
  Json json = {{"version", kTrainStateVersion}};
  visit(Writer{json}, copy);
  return json.dump(2);
}

TrainState parse_train_state(const std::string& text) try {
  const Json json = Json::parse(text);
  const int64_t version = json.is_object() ? json.value("version", int64_t{1}) : 1;
  check<ValueError>(version <= kTrainStateVersion,
                    "it is of version {}, and this program reads versions up to {}: use a newer one", version,
                    kTrainStateVersion);
  TrainState state;
  visit(Reader{json}, state);
  if (version == 1) state.optimizer_steps = state.progress.step;
  state.config.validate();
  return state;
} catch (const Json::exception& e) {
  fail<ValueError>("it is damaged, or of another version: its state cannot be read ({})", e.what());
}

}  // namespace tapehead
