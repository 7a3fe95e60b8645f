#include "tapehead/models/hugging_face.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "tapehead/core/file.h"
#include "tapehead/core/sharded_safetensors.h"
#include "tapehead/tests/models/relative_error.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

// What transformers saved and computed (tests/reference/make_hugging_face_golden.py).
std::string golden(const std::string& name) { return "tests/golden/hugging_face/" + name; }
constexpr const char* kGolden[] = {"gpt2", "llama", "qwen2"};

double logits_error(const LanguageModel& model, const std::string& name) {
  const SafetensorsFile expected = SafetensorsFile::open(golden(name) + "/expected.safetensors");
  return relative_error(model.logits(expected.tensor("input_ids")), expected.tensor("logits"));
}

// Changes a copy of a golden folder, and reads that.
class HuggingFaceTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name();
    take("gpt2");
  }

  void take(const std::string& name) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    config_ = json::parse(read_file(golden(name) + "/config.json"));
    tensors_.clear();
    const ShardedSafetensors file = ShardedSafetensors::open(golden(name));
    for (const std::string& tensor : file.names()) tensors_.emplace_back(tensor, file.tensor(tensor));
  }

  Tensor& tensor(const std::string& name) {
    const auto found = std::ranges::find(tensors_, name, &ParameterList::value_type::first);
    return found->second;
  }

  void write() const {
    write_file_atomically(folder_ + "/config.json", config_.dump());
    write_safetensors(folder_ + "/model.safetensors", tensors_);
  }
  std::unique_ptr<LanguageModel> load(DType dtype = DType::f32) const {
    write();
    return load_pretrained(folder_, dtype);
  }

  // Expects a ValueError that holds all of these.
  void expect_refusal(const std::vector<std::string>& says) const {
    try {
      load();
      ADD_FAILURE() << "accepted, without " << says.front();
    } catch (const ValueError& error) {
      for (const std::string& text : says) EXPECT_THAT(error.what(), HasSubstr(text));
    }
  }

  std::string folder_;
  json config_;
  ParameterList tensors_;
};

// ---- Reading

TEST_F(HuggingFaceTest, LogitsAreTransformers) {
  for (const char* name : kGolden)
    EXPECT_LT(logits_error(*load_pretrained(golden(name)), name), 1e-5) << name;
}

TEST_F(HuggingFaceTest, ModelsAreOnTheDefaultDeviceUnlessAnotherIsNamed) {
  EXPECT_EQ(load()->device(), test_device());
  EXPECT_EQ(load_pretrained(folder_, DType::f32, {Device::cpu})->device(), Device{Device::cpu});
}

TEST_F(HuggingFaceTest, AModelSavedWithoutItsHeadHasShorterNames) {
  for (const auto& [name, body] : {std::pair{"gpt2", "transformer."}, {"qwen2", "model."}}) {
    take(name);
    for (auto& [tensor_name, tensor] : tensors_) tensor_name = tensor_name.substr(std::strlen(body));
    EXPECT_LT(logits_error(*load(), name), 1e-5) << name;
  }
}

TEST_F(HuggingFaceTest, BuffersAndACopyOfTheTiedHeadAreSkipped) {
  tensors_.emplace_back("transformer.h.0.attn.bias", Tensor::zeros({1, 1, 24, 24}));
  tensors_.emplace_back("transformer.h.1.attn.masked_bias", Tensor::scalar(-1e4));
  tensors_.emplace_back("lm_head.weight", tensor("transformer.wte.weight").clone());
  EXPECT_LT(logits_error(*load(), "gpt2"), 1e-5);
  take("qwen2");
  tensors_.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", Tensor::zeros({2}));
  tensors_.emplace_back("lm_head.weight", tensor("model.embed_tokens.weight").clone());
  EXPECT_LT(logits_error(*load(), "qwen2"), 1e-5);
}

TEST_F(HuggingFaceTest, WeightsOfEveryDTypeAreConverted) {
  const auto expected = load(DType::f32)->parameters();
  for (auto& [name, tensor] : tensors_) tensor = tensor.to(DType::f64);
  const auto widened = load(DType::f32)->parameters();
  const auto rounded = load(DType::bf16)->parameters();
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto numbers = expected[i].second.to_vector<float>();
    EXPECT_EQ(widened[i].second.to_vector<float>(), numbers) << expected[i].first;
    EXPECT_EQ(rounded[i].second.to_vector<float>(), expected[i].second.to(DType::bf16).to_vector<float>())
        << expected[i].first;
  }
}

TEST_F(HuggingFaceTest, ProgressReachesItsEnd) {
  write();
  int64_t calls = 0, last = 0;
  load_pretrained(folder_, DType::f32, {}, [&](int64_t done, int64_t all) {
    EXPECT_EQ(done, ++calls);
    last = all;
  });
  EXPECT_EQ(calls, last);
  EXPECT_EQ(calls, std::ssize(tensors_));
}

TEST_F(HuggingFaceTest, AbsentAndNullFieldsAreTransformersDefaults) {
  write_file_atomically(folder_ + "/config.json", R"({"model_type": "gpt2", "n_head": null})");
  EXPECT_EQ(read_pretrained_config(folder_ + "/config.json"), (ModelConfig{.architecture = "gpt2",
                                                                           .vocab_size = 50257,
                                                                           .n_layer = 12,
                                                                           .n_head = 12,
                                                                           .n_embd = 768,
                                                                           .n_positions = 1024,
                                                                           .norm_epsilon = 1e-5}));
}

TEST_F(HuggingFaceTest, AbsentFieldsOfLlamaAndQwen2AreTransformersDefaults) {
  const std::string path = folder_ + "/config.json";
  write_file_atomically(path, R"({"model_type": "llama"})");
  ModelConfig expected;
  expected.architecture = "llama";
  expected.vocab_size = 32000;
  expected.n_layer = expected.n_head = 32;
  expected.n_embd = 4096;
  expected.n_inner = 11008;
  expected.n_positions = 2048;
  expected.norm_epsilon = 1e-6;
  expected.tied_head = false;
  EXPECT_EQ(read_pretrained_config(path), expected);
  write_file_atomically(path, R"({"model_type": "qwen2"})");
  expected.vocab_size = 151936;
  expected.n_kv_head = 32;
  expected.n_inner = 22016;
  expected.n_positions = 32768;
  expected.attention_bias = true;
  EXPECT_EQ(read_pretrained_config(path), expected);
}

// Version 4 wrote rope_theta and rope_scaling where version 5 has rope_parameters.
TEST_F(HuggingFaceTest, RotaryPositionsOfBothVersionsAreRead) {
  take("qwen2");
  config_.erase("rope_parameters");
  config_["rope_theta"] = 50000;
  config_["rope_scaling"] = nullptr;
  EXPECT_LT(logits_error(*load(), "qwen2"), 1e-5);

  const json scaling = {{"rope_type", "llama3"},  {"factor", 8.0},
                        {"low_freq_factor", 2.0}, {"high_freq_factor", 3.0},
                        {"rope_theta", 400000.0}, {"original_max_position_embeddings", 16}};
  config_["rope_scaling"] = scaling;
  write();
  const ModelConfig old_config = read_pretrained_config(folder_ + "/config.json");
  EXPECT_EQ(old_config.rope_theta, 400000);
  EXPECT_EQ(old_config.rope_scaling, (RopeScaling{.type = "llama3",
                                                  .factor = 8,
                                                  .low_freq_factor = 2,
                                                  .high_freq_factor = 3,
                                                  .original_max_position_embeddings = 16}));
  config_.erase("rope_scaling");
  config_["rope_parameters"] = scaling;
  write();
  EXPECT_EQ(read_pretrained_config(folder_ + "/config.json"), old_config);
  write_file_atomically(folder_ + "/config.json", to_pretrained_config(old_config, DType::f32, {}));
  EXPECT_EQ(read_pretrained_config(folder_ + "/config.json"), old_config);
}

TEST_F(HuggingFaceTest, FieldsThatChangeNothingAreRead) {
  config_["activation_function"] = "gelu_pytorch_tanh";
  config_["n_inner"] = 64;
  config_["reorder_and_upcast_attn"] = true;
  config_["n_ctx"] = 24;
  config_["task_specific_params"] = {{"text-generation", {{"max_length", 50}}}};
  EXPECT_LT(logits_error(*load(), "gpt2"), 1e-5);
}

// ---- What is refused

TEST_F(HuggingFaceTest, RefusesFieldsThatMakeAnotherFunctionByNameAndValue) {
  const json whole = config_;
  const std::pair<json, std::vector<std::string>> cases[] = {
      {{{"activation_function", "relu"}}, {"activation_function is \"relu\"", "gelu_new"}},
      {{{"activation_function", "gelu"}}, {"activation_function is \"gelu\""}},
      {{{"scale_attn_weights", false}}, {"scale_attn_weights is false"}},
      {{{"scale_attn_by_inverse_layer_idx", true}}, {"scale_attn_by_inverse_layer_idx is true"}},
      {{{"add_cross_attention", true}}, {"add_cross_attention is true"}},
      {{{"tie_word_embeddings", false}}, {"tie_word_embeddings is false"}},
      {{{"pruned_heads", {{"0", {1}}}}}, {"pruned_heads is {\"0\":[1]}"}},
      {{{"quantization_config", {{"bits", 4}}}}, {"quantization_config is {\"bits\":4}"}},
      // All at once.
      {{{"activation_function", 1}, {"scale_attn_weights", false}},
       {"activation_function is 1", "; scale_attn_weights is false"}},
      // Wrong kinds and values.
      {{{"n_layer", "2"}}, {"n_layer is \"2\"", "an integer"}},
      {{{"n_embd", 16.5}}, {"n_embd is 16.5", "an integer"}},
      {{{"layer_norm_epsilon", true}}, {"layer_norm_epsilon is true", "a number"}},
      {{{"n_head", 3}}, {"n_embd is 16 and n_head 3"}},
      {{{"n_layer", 0}}, {"n_layer is 0"}},
      {{{"vocab_size", -1}}, {"vocab_size is -1"}},
      {{{"n_layer", 1'000'000'000}}, {"1000000000 layers", "28 tensors"}},
      // Architectures.
      {{{"model_type", "gpt_neox"}}, {"model_type is \"gpt_neox\"", "\"gpt2\", \"llama\" and \"qwen2\""}},
      {{{"model_type", nullptr}}, {"model_type is null"}},
      {{{"model_type", 2}}, {"model_type is 2"}},
  };
  for (const auto& [patch, says] : cases) {
    config_ = whole;
    config_.update(patch);
    expect_refusal(says);
    expect_refusal({folder_});
  }
}

TEST_F(HuggingFaceTest, RefusesFieldsOfOtherLlamas) {
  const std::pair<json, std::vector<std::string>> cases[] = {
      {{{"hidden_act", "gelu"}}, {"hidden_act is \"gelu\"", "silu"}},
      {{{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}},
       {"rope_scaling.type is \"dynamic\"", "linear"}},
      {{{"rope_parameters", {{"rope_type", "yarn"}}}}, {"rope_parameters.rope_type is \"yarn\""}},
      {{{"rope_parameters", {{"partial_rotary_factor", 0.5}}}},
       {"rope_parameters.partial_rotary_factor is 0.5"}},
      {{{"partial_rotary_factor", 0.25}}, {"partial_rotary_factor is 0.25"}},
      {{{"rope_parameters", {{"full_attention", {{"rope_theta", 1.0}}}}}},
       {"rope_parameters is {\"full", "all layers"}},
      {{{"rope_scaling", "linear"}}, {"rope_scaling is \"linear\"", "an object"}},
      {{{"use_sliding_window", true}}, {"use_sliding_window is true"}},
      {{{"layer_types", {"full_attention", "sliding_attention"}}}, {"layer_types is [", "sliding_attention"}},
      {{{"head_dim", 5}}, {"width of a head is 5"}},
      {{{"num_key_value_heads", 3}}, {"n_kv_head is 3 and n_head 4"}},
      {{{"head_dim", 8}},
       {"model.layers.0.self_attn.q_proj.weight has shape (16, 16), but by the config (32, 16)",
        "; and 9 more"}},
  };
  for (const auto& [patch, says] : cases) {
    take("qwen2");
    config_.update(patch);
    expect_refusal(says);
  }
}

TEST_F(HuggingFaceTest, RefusesAConfigThatIsNone) {
  for (const char* text : {"", "{", "[]", "\"gpt2\"", "null"}) {
    write_file_atomically(folder_ + "/config.json", text);
    EXPECT_THROW(read_pretrained_config(folder_ + "/config.json"), ValueError) << text;
  }
  EXPECT_THROW(read_pretrained_config(folder_ + "/nothing.json"), ValueError);
}

TEST_F(HuggingFaceTest, NamesEveryTensorThatDoesNotFitWithItsShapes) {
  std::erase_if(tensors_, [](const auto& t) { return t.first == "transformer.h.1.ln_2.bias"; });
  tensor("transformer.wpe.weight") = Tensor::zeros({16, 24});
  tensor("transformer.h.0.ln_1.bias") = Tensor::zeros({16}, DType::i64);
  tensors_.emplace_back("transformer.h.2.ln_1.bias", Tensor::zeros({16}));
  tensors_.emplace_back("lm_head.weight", Tensor::zeros({272, 16}));
  expect_refusal({"transformer.h.1.ln_2.bias (16,) is missing",
                  "transformer.wpe.weight has shape (16, 24), but by the config (24, 16)",
                  "transformer.h.0.ln_1.bias is of dtype i64",
                  "transformer.h.2.ln_1.bias is no part of the model",
                  "lm_head.weight differs from transformer.wte.weight"});
}

TEST_F(HuggingFaceTest, NamesTheHeadThatIsNotTied) {
  take("llama");
  std::erase_if(tensors_, [](const auto& t) { return t.first == "lm_head.weight"; });
  expect_refusal({"lm_head.weight (272, 16) is missing"});
}

TEST_F(HuggingFaceTest, SaysHowManyTensorsElseDoNotFit) {
  config_["n_layer"] = 3;  // 12 tensors more
  expect_refusal({"transformer.h.2.ln_1.weight (16,) is missing", "; and 7 more"});
}

TEST_F(HuggingFaceTest, NamesTensorsThatAreNotFinite) {
  tensor("transformer.h.0.ln_1.bias") = Tensor::full({16}, std::numeric_limits<double>::quiet_NaN());
  tensor("transformer.h.1.ln_1.bias") = Tensor::full({16}, 1e39, DType::f64);
  expect_refusal({"infinity in f32: transformer.h.0.ln_1.bias; transformer.h.1.ln_1.bias"});
}

// ---- Writing

TEST_F(HuggingFaceTest, SavesWhatTransformersSaved) {
  for (const char* name : kGolden) {
    take(name);
    const DType dtype = tensors_.front().second.dtype();
    const int32_t end = config_.at("eos_token_id");
    save_pretrained(folder_, *load_pretrained(golden(name)), dtype,
                    {.beginning_of_text = end, .end_of_text = end});

    const SafetensorsFile saved = SafetensorsFile::open(folder_ + "/model.safetensors");
    EXPECT_EQ(saved.metadata().at("format"), "pt");
    std::vector<std::string> names;
    for (const auto& [tensor_name, tensor] : tensors_) {
      names.push_back(tensor_name);
      ASSERT_TRUE(saved.contains(tensor_name)) << tensor_name;
      EXPECT_EQ(saved.tensor(tensor_name).dtype(), dtype) << tensor_name;
      EXPECT_EQ(saved.tensor(tensor_name).to_vector<float>(), tensor.to_vector<float>()) << tensor_name;
    }
    EXPECT_THAT(saved.names(), UnorderedElementsAreArray(names));

    // Each field of ours has transformers' value, but for training's and those that version 5 has elsewhere.
    const json config = json::parse(read_file(folder_ + "/config.json"));
    for (const auto& [key, value] : config.items()) {
      if (key.ends_with("pdrop") || key.starts_with("rope_")) continue;
      EXPECT_EQ(value, config_.at(key == "torch_dtype" ? "dtype" : key)) << name << " " << key;
    }
    EXPECT_EQ(read_pretrained_config(folder_ + "/config.json"),
              read_pretrained_config(golden(name) + "/config.json"));
  }
}

TEST_F(HuggingFaceTest, SavesNoNumberBeyondTheDType) {
  tensor("transformer.h.1.ln_1.bias") = Tensor::full({16}, 70000, DType::f64);
  const auto model = load();
  const auto save = [&](DType dtype) { save_pretrained(folder_, *model, dtype); };
  save(DType::bf16);
  try {
    save(DType::f16);
    ADD_FAILURE() << "70000 was written in f16";
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("transformer.h.1.ln_1.bias holds a number beyond f16"));
  }
  EXPECT_EQ(SafetensorsFile::open(folder_ + "/model.safetensors").tensor("transformer.wte.weight").dtype(),
            DType::bf16);
}

TEST_F(HuggingFaceTest, WritesNoConfigThatTransformersWouldReadAsAnother) {
  ModelConfig config = read_pretrained_config(golden("qwen2") + "/config.json");
  config.mlp_bias = true;
  EXPECT_THROW(to_pretrained_config(config, DType::f32, {}), ValueError);
  config.attention_out_bias = true;
  EXPECT_EQ(json::parse(to_pretrained_config(config, DType::f32, {})).at("model_type"), "llama");
  config.attention_bias = false;
  EXPECT_THROW(to_pretrained_config(config, DType::f32, {}), ValueError);
}

TEST_F(HuggingFaceTest, AModelWithoutATokenizerHasNoSpecialTokens) {
  save_pretrained(folder_, *load(), DType::f32);
  const json config = json::parse(read_file(folder_ + "/config.json"));
  EXPECT_TRUE(config.at("eos_token_id").is_null());  // absent, it would be 50256
  EXPECT_TRUE(config.at("bos_token_id").is_null());
}

}  // namespace
}  // namespace tapehead
