#include "tapehead/tools/presets.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tapehead/core/error.h"

namespace tapehead {

using json = nlohmann::ordered_json;

static const json& presets() {
  static const json all = {
      // What `train` does by default.
      {"quickstart",
       {{"n-layer", 4},
        {"n-head", 4},
        {"n-embd", 256},
        {"context", 128},
        {"vocab-size", 8192},
        {"batch-size", 16},
        {"lr", 1e-3},
        {"min-lr", 1e-4},
        {"warmup", 25},
        {"steps", 250}}},
      // GPT-2's smallest (Radford et al., 2019), half a million tokens a step.
      {"gpt2-124m",
       {{"n-layer", 12},
        {"n-head", 12},
        {"n-embd", 768},
        {"context", 1024},
        {"vocab-size", 50257},
        {"batch-size", 480},
        {"accumulate", 120},
        {"lr", 6e-4},
        {"min-lr", 6e-5},
        {"warmup", 2000},
        {"steps", 600000}}},
      // The size of llama2.c's model of stories (Eldan and Li, "TinyStories", 2023).
      {"llama-15m",
       {{"architecture", "llama"},
        {"n-layer", 6},
        {"n-head", 6},
        {"n-embd", 288},
        {"context", 256},
        {"vocab-size", 32000},
        {"batch-size", 128},
        {"accumulate", 8},
        {"lr", 5e-4},
        {"min-lr", 0},
        {"warmup", 1000},
        {"steps", 100000}}},
      // SmolLM's smallest (Allal et al., 2024).
      {"smollm-135m",
       {{"architecture", "llama"},
        {"n-layer", 30},
        {"n-head", 9},
        {"n-kv-head", 3},
        {"n-embd", 576},
        {"n-inner", 1536},
        {"context", 2048},
        {"vocab-size", 49152},
        {"batch-size", 512},
        {"accumulate", 512},
        {"schedule", "wsd"},
        {"lr", 3e-3},
        {"min-lr", 0},
        {"warmup", 2000},
        {"steps", 600000}}},
  };
  return all;
}

std::string preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, options] : presets().items()) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

json preset(const std::string& name) {
  const auto found = presets().find(name);
  check<ValueError>(found != presets().end(), "[preset] there is no preset {}; there are {}", name,
                    preset_names());
  return *found;
}

}  // namespace tapehead
