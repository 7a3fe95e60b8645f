// config.json of Hugging Face's transformers, and what of it a model of ours has.
//
// Source of names, defaults and meaning: the configuration classes of transformers,
// GPT2Config, LlamaConfig and Qwen2Config.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tapehead/models/language_model.h"

namespace tapehead {

/// Reads a config.json. What is absent or null has transformers' default, and fields that transformers
/// does not know are as unread here as there. Dropout, which is of training alone, begins at 0.
///
/// ValueError that names the file, and every field with its value, for an architecture
/// that we do not have, for what would make of it another function than ours, and for
/// values of the wrong kind; what ModelConfig::validate throws.
ModelConfig read_pretrained_config(const std::string& path);

/// The ids of tokens with a meaning to whoever generates; absent where there is no tokenizer.
struct SpecialTokenIds {
  std::optional<int32_t> beginning_of_text = {};
  std::optional<int32_t> end_of_text = {};
};

/// The text of a config.json from which transformers makes the same model.
///   dtype  of the weights beside it
std::string to_pretrained_config(const ModelConfig& config, DType dtype, const SpecialTokenIds& tokens);

}  // namespace tapehead
