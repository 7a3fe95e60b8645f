// How what a run continues from stands in a checkpoint: as JSON. Both directions visit
// the same fields, so that they cannot disagree.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "tapehead/core/json.h"
#include "tapehead/models/run_config.h"
#include "tapehead/models/train_progress.h"

namespace tapehead {

/// The format's version. A reader takes its own and older ones.
constexpr int64_t kStateVersion = 2;

/// What a checkpoint is of.
enum class StateKind { model, head };

/// Puts what it visits into an object.
struct StateWriter {
  Json& json;
  template <class T>
  void operator()(const char* key, T& value) {
    json[key] = value;
  }
  void operator()(const char* key, DType& value) { json[key] = name(value); }
  void later(const char* key, auto& value) { (*this)(key, value); }
  void object(const char* key, auto&& fields) {
    Json inner = Json::object();
    fields(StateWriter{inner});
    json[key] = std::move(inner);
  }
  void later_object(const char* key, auto&& fields) { object(key, fields); }
};

/// Takes what it visits from an object. Throws nlohmann's exceptions for a field that is
/// missing or of another type.
struct StateReader {
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
  void object(const char* key, auto&& fields) { fields(StateReader{json.at(key)}); }
  void later_object(const char* key, auto&& fields) {
    if (json.contains(key)) object(key, fields);
  }
};

/// The version, the kind, and what `fields` visits.
std::string write_state(StateKind kind, const std::function<void(StateWriter)>& fields);

/// Has `fields` visit what was written, told its version. Throws ValueError, without a name of what
/// it read: on a version that is newer, another kind, a field that is missing or of another type.
void read_state(const std::string& text, StateKind kind,
                const std::function<void(StateReader, int64_t version)>& fields);

// ---- What the states of all kinds have

void visit_head(auto visitor, HeadConfig& head) {
  visitor.object("head", [&](auto field) {
    field("chunking_method", head.chunking_method);
    field("batch_chunk_size", head.batch_chunk_size);
    field("acc_policy", head.acc_policy);
    field("recompute", head.recompute);
    field("label_smoothing", head.label_smoothing);
    field("z_loss", head.z_loss);
    field.later("gradient_filter", head.gradient_filter);
  });
}

/// All of it but the head, which stands beside these.
void visit_run(auto field, RunConfig& config) {
  field("steps", config.steps);
  field("batch_size", config.batch_size);
  field.later("schedule", config.schedule);
  field("peak_lr", config.peak_lr);
  field("min_lr", config.min_lr);
  field("warmup_steps", config.warmup_steps);
  field.later("decay_steps", config.decay_steps);
  field.later("optimizer", config.optimizer.name);
  field("beta1", config.optimizer.beta1);
  field("beta2", config.optimizer.beta2);
  field("epsilon", config.optimizer.epsilon);
  field.later("momentum", config.optimizer.momentum);
  field.later("nesterov", config.optimizer.nesterov);
  field("weight_decay", config.optimizer.weight_decay);
  field("clip_norm", config.clip_norm);
  field.later("skip_z_score", config.skip_z_score);
  field("eval_interval", config.eval_interval);
  field("save_interval", config.save_interval);
  field.later("keep", config.keep);
  field.later("keep_best", config.keep_best);
  field("seed", config.seed);
}

void visit_statistics(auto visitor, const char* key, RunningStatistics& statistics) {
  visitor.object(key, [&](auto field) {
    field("mean_sum", statistics.mean_sum);
    field("square_sum", statistics.square_sum);
    field("count", statistics.count);
  });
}

void visit_progress(auto visitor, TrainProgress& progress, int64_t& optimizer_steps) {
  visitor("step", progress.step);
  visitor.later_object("progress", [&](auto field) {
    field("optimizer_steps", optimizer_steps);
    visit_statistics(field, "smoothed_loss", progress.loss);
    visit_statistics(field, "guard_loss", progress.guard.loss);
    visit_statistics(field, "guard_norm", progress.guard.norm);
    field("skipped_in_a_row", progress.guard.in_a_row);
    field("evaluated_step", progress.evaluated_step);
    field("best_step", progress.best_step);
    field("best_loss", progress.best_loss);
  });
}

}  // namespace tapehead
