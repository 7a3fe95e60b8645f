#include "tapehead/models/hugging_face_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "tapehead/core/json.h"
#include "tapehead/core/problem_list.h"

namespace tapehead {
namespace {

using json = Json;

// ---- Reading

// The fields of an object in a config.json. What is wrong with them is gathered.
class Fields {
 public:
  Fields(json object, std::string prefix, ProblemList* problems)
      : object_(std::move(object)), prefix_(std::move(prefix)), problems_(problems) {}

  int64_t integer(const char* key, int64_t otherwise) const {
    return get(key, otherwise, value(key).is_number_integer(), "an integer");
  }
  double number(const char* key, double otherwise) const {
    return get(key, otherwise, value(key).is_number(), "a number");
  }
  bool flag(const char* key, bool otherwise) const {
    return get(key, otherwise, value(key).is_boolean(), "true or false");
  }
  std::string text(const char* key, std::string otherwise) const {
    return get(key, std::move(otherwise), value(key).is_string(), "a string");
  }
  Fields object(const char* key) const {
    return Fields(get(key, json::object(), value(key).is_object(), "an object"),
                  fmt::format("{}{}.", prefix_, key), problems_);
  }

  // Null if it is absent.
  const json& value(const char* key) const {
    static const json null;
    const auto found = object_.find(key);
    return found == object_.end() ? null : *found;
  }
  const json& all() const { return object_; }
  bool has(const char* key) const { return !value(key).is_null(); }

  // Refuses other values than these; an absent field is the default, which is one of them.
  void only(const char* key, std::initializer_list<json> allowed) const {
    if (!has(key) || std::find(allowed.begin(), allowed.end(), value(key)) != allowed.end()) return;
    std::vector<std::string> texts;
    for (const json& one : allowed) texts.push_back(one.dump());
    refuse(key, fmt::format("here it can be {} alone", fmt::join(texts, " or ")));
  }

  void refuse(const char* key, std::string_view why) const {
    std::string text = value(key).dump(-1, ' ', false, json::error_handler_t::replace);
    if (text.size() > kShown) text = text.substr(0, kShown) + "...";
    problems_->add("{}{} is {}: {}", prefix_, key, text, why);
  }

 private:
  static constexpr size_t kShown = 100;

  template <class T>
  T get(const char* key, T otherwise, bool right, const char* wanted) const {
    if (!has(key)) return otherwise;
    if (right) return value(key).get<T>();
    refuse(key, fmt::format("it must be {}", wanted));
    return otherwise;
  }

  json object_;
  std::string prefix_;  // of the keys in errors
  ProblemList* problems_;
};

ModelConfig read_gpt2(const Fields& fields) {
  ModelConfig config;
  config.architecture = "gpt2";
  config.vocab_size = fields.integer("vocab_size", 50257);
  // The second names are transformers' aliases for the first.
  config.n_layer = fields.integer("n_layer", fields.integer("num_hidden_layers", 12));
  config.n_head = fields.integer("n_head", fields.integer("num_attention_heads", 12));
  config.n_embd = fields.integer("n_embd", fields.integer("hidden_size", 768));
  config.n_positions = fields.integer("n_positions", fields.integer("max_position_embeddings", 1024));
  config.n_inner = fields.integer("n_inner", 0);
  config.norm_epsilon = fields.number("layer_norm_epsilon", 1e-5);
  fields.only("activation_function", {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"});
  fields.only("scale_attn_weights", {true});
  fields.only("scale_attn_by_inverse_layer_idx", {false});
  fields.only("add_cross_attention", {false});
  fields.only("tie_word_embeddings", {true});
  return config;
}

// Rotary positions: rope_parameters of transformers' version 5; before it, rope_theta and rope_scaling.
void read_rotary(const Fields& fields, ModelConfig* config) {
  const char* const key = fields.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const Fields rope = fields.object(key);
  // Then there are several, each for some of the layers.
  if (std::any_of(rope.all().begin(), rope.all().end(),
                  [](const json& member) { return member.is_object(); })) {
    fields.refuse(key, "all layers have the same rotary positions here");
  }
  for (const char* type : {"rope_type", "type"}) rope.only(type, {"default", "linear", "llama3"});
  for (const Fields& place : {fields, rope}) place.only("partial_rotary_factor", {1.0});
  config->rope_theta = rope.number("rope_theta", fields.number("rope_theta", 10000));
  RopeScaling& scaling = config->rope_scaling;
  scaling.type = rope.text("rope_type", rope.text("type", "default"));
  scaling.factor = rope.number("factor", scaling.factor);
  scaling.low_freq_factor = rope.number("low_freq_factor", scaling.low_freq_factor);
  scaling.high_freq_factor = rope.number("high_freq_factor", scaling.high_freq_factor);
  if (scaling.type == "llama3") {
    scaling.original_max_position_embeddings =
        rope.integer("original_max_position_embeddings", config->n_positions);
  }
}

// What Llama and Qwen2 share; their defaults are not the same.
ModelConfig read_llama_family(const Fields& fields, const ModelConfig& defaults) {
  ModelConfig config = defaults;
  config.architecture = "llama";
  config.vocab_size = fields.integer("vocab_size", defaults.vocab_size);
  config.n_layer = fields.integer("num_hidden_layers", 32);
  config.n_head = fields.integer("num_attention_heads", 32);
  config.n_kv_head = fields.integer("num_key_value_heads", defaults.n_kv_head);
  config.n_embd = fields.integer("hidden_size", 4096);
  config.n_inner = fields.integer("intermediate_size", defaults.n_inner);
  config.n_positions = fields.integer("max_position_embeddings", defaults.n_positions);
  config.head_dim = fields.integer("head_dim", 0);
  config.norm_epsilon = fields.number("rms_norm_eps", 1e-6);
  config.tied_head = fields.flag("tie_word_embeddings", false);
  fields.only("hidden_act", {"silu", "swish"});
  read_rotary(fields, &config);
  return config;
}

ModelConfig read_llama(const Fields& fields) {
  ModelConfig defaults;
  defaults.vocab_size = 32000;
  defaults.n_positions = 2048;
  defaults.n_inner = 11008;
  ModelConfig config = read_llama_family(fields, defaults);
  config.attention_bias = config.attention_out_bias = fields.flag("attention_bias", false);
  config.mlp_bias = fields.flag("mlp_bias", false);
  return config;
}

ModelConfig read_qwen2(const Fields& fields) {
  ModelConfig defaults;
  defaults.vocab_size = 151936;
  defaults.n_positions = 32768;
  defaults.n_inner = 22016;
  defaults.n_kv_head = 32;
  ModelConfig config = read_llama_family(fields, defaults);
  config.attention_bias = true;
  fields.only("use_sliding_window", {false});
  const json& types = fields.value("layer_types");
  if (std::any_of(types.begin(), types.end(), [](const json& type) { return type != "full_attention"; })) {
    fields.refuse("layer_types", "every layer attends to the whole context here");
  }
  return config;
}

ModelConfig read_model(const Fields& fields) {
  const std::string type = fields.text("model_type", "");
  if (type == "gpt2") return read_gpt2(fields);
  if (type == "llama") return read_llama(fields);
  if (type == "qwen2") return read_qwen2(fields);
  fields.refuse("model_type", "the architectures here are \"gpt2\", \"llama\" and \"qwen2\"");
  return {};
}

// ---- Writing

const char* torch_name(DType dtype) {
  switch (dtype) {
    case DType::f64: return "float64";
    case DType::f16: return "float16";
    case DType::bf16: return "bfloat16";
    default: return "float32";
  }
}

json gpt2_fields(const ModelConfig& config) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", config.vocab_size},
          {"n_positions", config.n_positions},
          {"n_embd", config.n_embd},
          {"n_layer", config.n_layer},
          {"n_head", config.n_head},
          {"n_inner", config.n_inner > 0 ? json(config.n_inner) : json(nullptr)},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", config.norm_epsilon},
          {"embd_pdrop", config.dropout},
          {"resid_pdrop", config.dropout},
          {"attn_pdrop", 0.0},
          {"scale_attn_weights", true},
          {"tie_word_embeddings", true}};
}

json rope_scaling_field(const RopeScaling& scaling) {
  if (scaling.type == "default") return nullptr;
  json field = {{"rope_type", scaling.type}, {"factor", scaling.factor}};
  if (scaling.type == "llama3") {
    field["low_freq_factor"] = scaling.low_freq_factor;
    field["high_freq_factor"] = scaling.high_freq_factor;
    field["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
  }
  return field;
}

// As a Qwen2, if only queries, keys and values have a bias: a Llama's attention_bias is
// of the projection out, too.
json llama_fields(const ModelConfig& config) {
  const bool qwen2 = config.attention_bias && !config.attention_out_bias;
  check<ValueError>(config.attention_bias >= config.attention_out_bias && !(qwen2 && config.mlp_bias),
                    "[hugging_face] attention_bias is {}, attention_out_bias {} and mlp_bias {}: no model of "
                    "transformers has these alone",
                    config.attention_bias, config.attention_out_bias, config.mlp_bias);
  json fields = {{"architectures", {qwen2 ? "Qwen2ForCausalLM" : "LlamaForCausalLM"}},
                 {"model_type", qwen2 ? "qwen2" : "llama"},
                 {"vocab_size", config.vocab_size},
                 {"max_position_embeddings", config.n_positions},
                 {"hidden_size", config.n_embd},
                 {"intermediate_size", config.inner()},
                 {"num_hidden_layers", config.n_layer},
                 {"num_attention_heads", config.n_head},
                 {"num_key_value_heads", config.kv_heads()},
                 {"hidden_act", "silu"},
                 {"rms_norm_eps", config.norm_epsilon},
                 {"rope_theta", config.rope_theta},
                 {"rope_scaling", rope_scaling_field(config.rope_scaling)},
                 {"attention_dropout", 0.0},
                 {"tie_word_embeddings", config.tied_head}};
  if (!qwen2 || config.head_dim > 0) fields["head_dim"] = config.head_width();
  if (qwen2) {
    fields["use_sliding_window"] = false;
  } else {
    fields["attention_bias"] = config.attention_bias;
    fields["mlp_bias"] = config.mlp_bias;
  }
  return fields;
}

}  // namespace

ModelConfig read_pretrained_config(const std::string& path) {
  ProblemList problems;
  const Fields fields(read_json_object("hugging_face", path), "", &problems);
  const ModelConfig config = read_model(fields);
  if (fields.has("quantization_config"))
    fields.refuse("quantization_config", "weights are f32, f16 or bf16 here");
  fields.only("pruned_heads", {json::object()});
  check<ValueError>(problems.empty(), "[hugging_face] {}: {}", path, problems.text());
  try {
    config.validate();
  } catch (const ValueError& error) {
    fail<ValueError>("[hugging_face] {}: {}", path, error.what());
  }
  return config;
}

std::string to_pretrained_config(const ModelConfig& config, DType dtype, const SpecialTokenIds& tokens) {
  const auto id = [](std::optional<int32_t> token) { return token ? json(*token) : json(nullptr); };
  json fields = config.architecture == "gpt2" ? gpt2_fields(config) : llama_fields(config);
  fields["bos_token_id"] = id(tokens.beginning_of_text);
  fields["eos_token_id"] = id(tokens.end_of_text);
  fields["torch_dtype"] = torch_name(dtype);
  return fields.dump(2) + "\n";
}

}  // namespace tapehead
