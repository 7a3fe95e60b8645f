#include "tapehead/models/llama.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tapehead/core/safetensors.h"
#include "tapehead/ops/linear_cross_entropy.h"
#include "tapehead/tests/models/relative_error.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

const ModelConfig kTiny{.architecture = "llama",
                        .vocab_size = 7,
                        .n_layer = 2,
                        .n_head = 2,
                        .n_embd = 4,
                        .n_positions = 3,
                        .n_inner = 5,
                        .n_kv_head = 1,
                        .tied_head = false,
                        .attention_bias = true,
                        .attention_out_bias = true,
                        .mlp_bias = true};

// ---- Against transformers (tests/reference/README.md)

struct Golden {
  SafetensorsFile file = SafetensorsFile::open("tests/golden/llama.safetensors");
  nlohmann::json models = nlohmann::json::parse(file.metadata().at("models"));

  ModelConfig config(const std::string& name) const {
    const nlohmann::json& m = models.at(name);
    ModelConfig c{.architecture = "llama",
                  .vocab_size = m.at("vocab_size"),
                  .n_layer = m.at("n_layer"),
                  .n_head = m.at("n_head"),
                  .n_embd = m.at("n_embd"),
                  .n_positions = m.at("n_positions"),
                  .n_inner = m.at("n_inner"),
                  .norm_epsilon = m.at("norm_epsilon"),
                  .n_kv_head = m.at("n_kv_head"),
                  .head_dim = m.value("head_dim", 0),
                  .rope_theta = m.value("rope_theta", 10000.0),
                  .tied_head = m.at("tied_head"),
                  .attention_bias = m.value("attention_bias", false),
                  .attention_out_bias = m.value("attention_out_bias", false),
                  .mlp_bias = m.value("mlp_bias", false)};
    if (const auto scaling = m.find("rope_scaling"); scaling != m.end()) {
      c.rope_scaling = {.type = scaling->at("rope_type"), .factor = scaling->at("factor")};
      if (c.rope_scaling.type == "llama3") {
        c.rope_scaling.low_freq_factor = scaling->at("low_freq_factor");
        c.rope_scaling.high_freq_factor = scaling->at("high_freq_factor");
        c.rope_scaling.original_max_position_embeddings = scaling->at("original_max_position_embeddings");
      }
    }
    return c;
  }

  Llama model(const std::string& name, DType dtype) const {
    const Llama model(config(name), 0, dtype);
    const NoGradGuard no_grad;
    for (const auto& [key, parameter] : model.parameters())
      Tensor(parameter).copy_from(file.tensor(name + "/" + key));
    return model;
  }
};

TEST(LlamaTest, NamesAndShapesAreHuggingFaces) {
  const Golden golden;
  for (const auto& [name, settings] : golden.models.items()) {
    const Llama model(golden.config(name));
    int64_t gradients = 0;
    for (const std::string& key : golden.file.names()) gradients += key.starts_with(name + "/grad/");
    EXPECT_EQ(std::ssize(model.parameters()), gradients) << name;
    for (const auto& [key, parameter] : model.parameters()) {
      ASSERT_TRUE(golden.file.contains(name + "/" + key)) << name << " " << key;
      EXPECT_EQ(parameter.shape(), golden.file.tensor(name + "/" + key).shape()) << name << " " << key;
    }
  }
}

TEST(LlamaTest, LogitsLossAndEveryGradientAreTransformers) {
  const Golden golden;
  for (const auto& [name, settings] : golden.models.items()) {
    const auto expected = [&, model = name](const std::string& key) {
      return golden.file.tensor(model + "/" + key);
    };
    const Tensor ids = expected("input_ids"), targets = expected("targets");
    for (const DType dtype : {DType::f32, DType::f64}) {
      const std::string suffix = dtype == DType::f64 ? "_f64" : "";
      const double tolerance = dtype == DType::f64 ? 1e-6 : 1e-5;  // transformers' cosines are f32 in both
      const Llama model = golden.model(name, dtype);
      EXPECT_LT(relative_error(model.logits(ids), expected("logits" + suffix)), tolerance) << name << suffix;
      const Tensor loss = model.loss(ids, targets, {});
      EXPECT_LT(relative_error(loss, expected("loss" + suffix)), tolerance) << name << suffix;
      backward(loss);
      for (const auto& [key, parameter] : model.parameters()) {
        // The keys' bias shifts all scores of a query alike but for their rotation: its
        // gradient is small, not zero.
        EXPECT_LT(relative_error(parameter.grad(), expected("grad/" + key)), 1e-5)
            << name << " " << key << suffix;
      }
    }
  }
}

// ---- By itself

TEST(LlamaTest, GradientsAreDifferences) {
  if (device_is_emulated()) GTEST_SKIP() << "thousands of forwards take minutes on an emulated device";
  const Llama model(kTiny, 0, DType::f64);
  std::vector<Tensor> parameters;
  {
    const NoGradGuard no_grad;
    uint64_t seed = 1;
    for (const auto& [name, parameter] : model.parameters()) {
      Tensor(parameter).copy_from(random_tensor(parameter.shape(), seed++));
      parameters.push_back(parameter);
    }
  }
  const Tensor ids = Tensor::from<int64_t>({2, 3}, std::vector<int64_t>{1, 6, 1, 0, 2, 5});
  const Tensor targets = Tensor::from<int64_t>({2, 3}, std::vector<int64_t>{6, 1, -100, 2, 5, 3});
  expect_gradcheck([&](const std::vector<Tensor>&) { return model.loss(ids, targets, {}); }, parameters);
}

TEST(LlamaTest, InitialisesAsDocumented) {
  ModelConfig config = kTiny;
  config.n_embd = 128;
  config.n_inner = 0;
  EXPECT_EQ(config.inner(), 352);  // 8/3 · 128 = 341.3
  const Llama model(config);
  for (const auto& [name, parameter] : model.parameters()) {
    const std::vector<double> values = parameter.to_vector<double>();
    double square = 0;
    for (const double v : values) square += v * v;
    const double deviation = std::sqrt(square / static_cast<double>(values.size()));
    const bool residual =
        name.find("o_proj.weight") != std::string::npos || name.find("down_proj.weight") != std::string::npos;
    const double expected = name.find("bias") != std::string::npos   ? 0
                            : name.find("norm") != std::string::npos ? 1
                            : residual                               ? 0.01
                                                                     : 0.02;
    EXPECT_NEAR(deviation, expected, 0.05 * expected) << name;
  }
}

TEST(LlamaTest, ConfigErrors) {
  const auto refused = [](auto change, const std::string& message) {
    ModelConfig config = kTiny;
    change(config);
    expect_error<ValueError>([&] { Llama{config}; }, message);
  };
  refused([](ModelConfig& c) { c.architecture = "mamba"; }, "architecture is mamba: it is gpt2 or llama");
  refused([](ModelConfig& c) { c.n_kv_head = 3; }, "n_kv_head is 3 and n_head 2");
  refused([](ModelConfig& c) { c.n_kv_head = -1; }, "n_kv_head is -1");
  refused([](ModelConfig& c) { c.head_dim = 3; }, "the width of a head is 3");
  refused([](ModelConfig& c) { c.n_embd = 6; }, "the width of a head is 3");
  refused([](ModelConfig& c) { c.n_embd = 5; }, "n_embd must be a multiple of n_head");
  refused([](ModelConfig& c) { c.n_inner = -1; }, "n_inner is -1");
  refused([](ModelConfig& c) { c.rope_theta = 0; }, "rope_theta is 0");
  refused([](ModelConfig& c) { c.rope_scaling.type = "yarn"; },
          "rope_scaling.type is yarn: it is default, linear or llama3");
  refused([](ModelConfig& c) { c.rope_scaling.factor = 0; }, "rope_scaling.factor is 0");
  refused([](ModelConfig& c) { c.rope_scaling.high_freq_factor = 1; }, "high_freq_factor 1");
  // A GPT-2 takes none of them.
  for (const auto& change : std::vector<std::function<void(ModelConfig&)>>{
           [](ModelConfig& c) { c.n_kv_head = 2; }, [](ModelConfig& c) { c.tied_head = false; },
           [](ModelConfig& c) { c.attention_bias = true; }, [](ModelConfig& c) { c.head_dim = 8; }}) {
    ModelConfig config;
    change(config);
    expect_error<ValueError>([&] { make_model(config); }, "in a gpt2 it is");
  }
}

}  // namespace
}  // namespace tapehead
