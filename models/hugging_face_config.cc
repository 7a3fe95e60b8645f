#include "tapehead/models/hugging_face_config.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "tapehead/core/file.h"
#include "tapehead/core/problem_list.h"

namespace tapehead {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// ---- Reading

// The fields of a config.json, and what is wrong with them.
class Fields {
 public:
  explicit Fields(json object) : object_(std::move(object)) {}

  int64_t integer(const char* key, int64_t otherwise) {
    return get(key, otherwise, object_value(key).is_number_integer(), "an integer");
  }
  double number(const char* key, double otherwise) {
    return get(key, otherwise, object_value(key).is_number(), "a number");
  }
  bool flag(const char* key, bool otherwise) {
    return get(key, otherwise, object_value(key).is_boolean(), "true or false");
  }
  std::string text(const char* key, const char* otherwise) {
    return get(key, std::string(otherwise), object_value(key).is_string(), "a string");
  }

  bool has(const char* key) const { return !object_value(key).is_null(); }

  // Refuses other values than these; an absent field is the default, which is one of them.
  void only(const char* key, std::initializer_list<json> allowed) {
    const json& value = object_value(key);
    if (value.is_null() || std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
    std::vector<std::string> texts;
    for (const json& one : allowed) texts.push_back(one.dump());
    refuse(key, fmt::format("here it can be {} alone", fmt::join(texts, " or ")));
  }

  void refuse(const char* key, std::string_view why) {
    problems_.add("{} is {}: {}", key, shown(object_value(key)), why);
  }

  const ProblemList& problems() const { return problems_; }

 private:
  const json& object_value(const char* key) const {
    static const json null;
    const auto found = object_.find(key);
    return found == object_.end() ? null : *found;
  }

  template <class T>
  T get(const char* key, T otherwise, bool right, const char* wanted) {
    if (!has(key)) return otherwise;
    if (right) return object_value(key).get<T>();
    refuse(key, fmt::format("it must be {}", wanted));
    return otherwise;
  }

  static std::string shown(const json& value) {
    const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
    return text.size() > 100 ? text.substr(0, 100) + "..." : text;
  }

  json object_;
  ProblemList problems_;
};

ModelConfig read_gpt2(Fields& fields) {
  ModelConfig config;
  config.architecture = "gpt2";
  config.vocab_size = fields.integer("vocab_size", 50257);
  // The second names are transformers' aliases for the first.
  config.n_layer = fields.integer("n_layer", fields.integer("num_hidden_layers", 12));
  config.n_head = fields.integer("n_head", fields.integer("num_attention_heads", 12));
  config.n_embd = fields.integer("n_embd", fields.integer("hidden_size", 768));
  config.n_positions = fields.integer("n_positions", fields.integer("max_position_embeddings", 1024));
  config.norm_epsilon = fields.number("layer_norm_epsilon", 1e-5);
  fields.only("n_inner", {4 * config.n_embd});
  fields.only("activation_function", {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"});
  fields.only("scale_attn_weights", {true});
  fields.only("scale_attn_by_inverse_layer_idx", {false});
  fields.only("add_cross_attention", {false});
  fields.only("tie_word_embeddings", {true});
  return config;
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

ordered_json gpt2_fields(const ModelConfig& config) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", config.vocab_size},
          {"n_positions", config.n_positions},
          {"n_embd", config.n_embd},
          {"n_layer", config.n_layer},
          {"n_head", config.n_head},
          {"n_inner", nullptr},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", config.norm_epsilon},
          {"embd_pdrop", config.dropout},
          {"resid_pdrop", config.dropout},
          {"attn_pdrop", 0.0},
          {"scale_attn_weights", true},
          {"tie_word_embeddings", true}};
}

}  // namespace

ModelConfig read_pretrained_config(const std::string& path) {
  json object = json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  check<ValueError>(object.is_object(), "[hugging_face] {} is not a JSON object", path);
  Fields fields(std::move(object));
  const std::string type = fields.text("model_type", "");
  check<ValueError>(type == "gpt2",
                    "[hugging_face] {}: model_type is \"{}\": the architectures here are gpt2", path, type);
  const ModelConfig config = read_gpt2(fields);
  if (fields.has("quantization_config"))
    fields.refuse("quantization_config", "weights are f32, f16 or bf16 here");
  fields.only("pruned_heads", {json::object()});
  check<ValueError>(fields.problems().empty(), "[hugging_face] {}: {}", path, fields.problems().text());
  try {
    config.validate();
  } catch (const ValueError& error) {
    fail<ValueError>("[hugging_face] {}: {}", path, error.what());
  }
  return config;
}

std::string to_pretrained_config(const ModelConfig& config, DType dtype, const SpecialTokenIds& tokens) {
  const auto id = [](std::optional<int32_t> token) {
    return token ? ordered_json(*token) : ordered_json(nullptr);
  };
  ordered_json fields = gpt2_fields(config);
  fields["bos_token_id"] = id(tokens.beginning_of_text);
  fields["eos_token_id"] = id(tokens.end_of_text);
  fields["torch_dtype"] = torch_name(dtype);
  return fields.dump(2) + "\n";
}

}  // namespace tapehead
