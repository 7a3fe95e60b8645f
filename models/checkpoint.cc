#include "tapehead/models/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tapehead/core/file.h"
#include "tapehead/core/safetensors.h"

namespace tapehead {

using Json = nlohmann::ordered_json;

static constexpr const char* kMetadataKey = "tapehead";
static constexpr const char* kExtension = ".safetensors";
static constexpr const char* kFirstMoment = "optimizer.first.";
static constexpr const char* kSecondMoment = "optimizer.second.";
static constexpr const char* kMaster = "optimizer.master.";

// ---- The state as JSON. Both directions visit the same fields, so that they cannot disagree.

namespace {

struct Writer {
  Json& json;
  template <class T>
  void operator()(const char* key, T& value) {
    json[key] = value;
  }
  void operator()(const char* key, DType& value) { json[key] = name(value); }
  void later(const char* key, auto& value) { (*this)(key, value); }
  template <class F>
  void object(const char* key, F&& fields) {
    Json inner = Json::object();
    fields(Writer{inner});
    json[key] = std::move(inner);
  }
};

}  // namespace

namespace {

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
  template <class F>
  void object(const char* key, F&& fields) {
    fields(Reader{json.at(key)});
  }
};

}  // namespace

static void visit(auto visitor, TrainState& state) {
  TrainConfig& c = state.config;
  visitor("step", state.step);
  visitor.object("position", [&](auto field) {
    field("epoch", state.position.epoch);
    field("window", state.position.window);
    field("training_tokens", state.training_tokens);
  });
  visitor.object("dropout_numbers", [&](auto field) {
    field("seed", state.dropout.seed);
    field("next", state.dropout.next);
  });
  visitor.later("filter_seed", state.filter.seed);
  visitor.later("filter_next", state.filter.next);
  visitor("tokenizer", c.tokenizer);
  visitor.object("model", [&](auto field) {
    field.later("architecture", c.model.architecture);
    field("vocab_size", c.model.vocab_size);
    field("n_layer", c.model.n_layer);
    field("n_head", c.model.n_head);
    field("n_embd", c.model.n_embd);
    field("n_positions", c.model.n_positions);
    field("dropout", c.model.dropout);
    field("layer_norm_epsilon", c.model.norm_epsilon);
    field.later("n_inner", c.model.n_inner);
    field.later("n_kv_head", c.model.n_kv_head);
    field.later("head_dim", c.model.head_dim);
    field.later("rope_theta", c.model.rope_theta);
    field.later("rope_type", c.model.rope_scaling.type);
    field.later("rope_factor", c.model.rope_scaling.factor);
    field.later("rope_low_freq_factor", c.model.rope_scaling.low_freq_factor);
    field.later("rope_high_freq_factor", c.model.rope_scaling.high_freq_factor);
    field.later("rope_original_max_position_embeddings",
                c.model.rope_scaling.original_max_position_embeddings);
    field.later("tied_head", c.model.tied_head);
    field.later("attention_bias", c.model.attention_bias);
    field.later("attention_out_bias", c.model.attention_out_bias);
    field.later("mlp_bias", c.model.mlp_bias);
  });
  visitor.object("training", [&](auto field) {
    field.later("dtype", c.dtype);
    field("steps", c.steps);
    field("batch_size", c.batch_size);
    field("micro_batch_size", c.micro_batch_size);
    field("peak_lr", c.peak_lr);
    field("min_lr", c.min_lr);
    field("warmup_steps", c.warmup_steps);
    field("beta1", c.optimizer.beta1);
    field("beta2", c.optimizer.beta2);
    field("epsilon", c.optimizer.epsilon);
    field("weight_decay", c.optimizer.weight_decay);
    field("clip_norm", c.clip_norm);
    field("eval_interval", c.eval_interval);
    field("save_interval", c.save_interval);
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

static std::string to_json(TrainState state) {
  Json json = Json::object();
  visit(Writer{json}, state);
  return json.dump(2);
}

static TrainState parse_state(const SafetensorsFile& file, const std::string& path) {
  const auto found = file.metadata().find(kMetadataKey);
  check<ValueError>(
      found != file.metadata().end(),
      "[checkpoint] {} holds tensors, but is no checkpoint of tapehead: its metadata has no entry \"{}\"",
      path, kMetadataKey);
  try {
    const Json json = Json::parse(found->second);
    TrainState state;
    visit(Reader{json}, state);
    state.config.validate();
    return state;
  } catch (const Json::exception& e) {
    fail<ValueError>("[checkpoint] {} is damaged, or of another version: its state cannot be read ({})", path,
                     e.what());
  } catch (const ValueError& e) {
    fail<ValueError>("[checkpoint] {} is damaged: {}", path, e.what());
  }
}

// ---- Writing

void save_checkpoint(const std::string& path, const TrainState& state, const LanguageModel& model,
                     const AdamWOptimizer* optimizer) {
  check<ValueError>(path.ends_with(kExtension), "[checkpoint] a checkpoint's path ends in {}, unlike {}",
                    kExtension, path);
  ParameterList tensors = model.parameters();
  if (optimizer) {
    for (const auto& [name, moment] : optimizer->first_moments())
      tensors.emplace_back(kFirstMoment + name, moment);
    for (const auto& [name, moment] : optimizer->second_moments())
      tensors.emplace_back(kSecondMoment + name, moment);
    for (const auto& [name, master] : optimizer->masters()) tensors.emplace_back(kMaster + name, master);
  }
  const std::string json = to_json(state);
  write_safetensors(path, tensors, {{kMetadataKey, json}});
  write_file_atomically(path.substr(0, path.size() - std::string_view(kExtension).size()) + ".json",
                        json + "\n");
}

// ---- Reading

static void load_tensors(const SafetensorsFile& file, const std::string& path, const LanguageModel& model,
                         const AdamWOptimizer* optimizer) {
  std::vector<std::pair<Tensor, Tensor>> copies;  // to, from
  const auto find = [&](const std::string& prefix, const ParameterList& list) {
    for (const auto& [name, to] : list) {
      check<ValueError>(file.contains(prefix + name),
                        "[checkpoint] {} has no tensor {}{}: it is a checkpoint of another model", path,
                        prefix, name);
      const Tensor from = file.tensor(prefix + name);
      check<ValueError>(
          from.shape() == to.shape() && from.dtype() == to.dtype(),
          "[checkpoint] tensor {}{} of {} is {} of shape {}, but the model's is {} of shape {}: it is a "
          "checkpoint of another model",
          prefix, name, path, from.dtype(), from.shape(), to.dtype(), to.shape());
      check<ValueError>(device_runtime(from.device()).all_finite(from),
                        "[checkpoint] tensor {}{} of {} holds a NaN or an infinity", prefix, name, path);
      copies.emplace_back(to, from);
    }
  };
  find("", model.parameters());
  if (optimizer) {
    check<ValueError>(
        std::ranges::any_of(file.names(), [](const auto& n) { return n.starts_with(kFirstMoment); }),
        "[checkpoint] {} holds a model without an optimiser's state: no run goes on from it, but one can "
        "begin with it",
        path);
    find(kFirstMoment, optimizer->first_moments());
    find(kSecondMoment, optimizer->second_moments());
    find(kMaster, optimizer->masters());
  }
  const NoGradGuard no_grad;
  for (auto& [to, from] : copies) to.copy_from(from);
}

TrainState read_train_state(const std::string& path) {
  return parse_state(SafetensorsFile::open(path), path);
}

void load_tensors(const std::string& path, const LanguageModel& model, AdamWOptimizer* optimizer) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  load_tensors(file, path, model, optimizer);
  if (optimizer) optimizer->set_steps(parse_state(file, path).step);
}

LoadedModel load_model(const std::string& path, Device device) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  TrainState state = parse_state(file, path);
  std::unique_ptr<LanguageModel> model = make_model(state.config.model, 0, state.config.dtype, device);
  load_tensors(file, path, *model, nullptr);
  return {.state = std::move(state), .model = std::move(model)};
}

}  // namespace tapehead
