// The 2-layer GPT-2 of tests/golden/gpt2.safetensors (tests/reference/README.md).
#pragma once

#include "tapehead/core/safetensors.h"
#include "tapehead/models/gpt.h"
#include "tapehead/tests/models/relative_error.h"

namespace tapehead {

inline SafetensorsFile gpt2_golden() { return SafetensorsFile::open("tests/golden/gpt2.safetensors"); }

/// With the golden parameters, in f32 or converted to f64.
inline GPT gpt2_model(const SafetensorsFile& golden, DType dtype = DType::f32) {
  const GPT model({.vocab_size = 97, .n_layer = 2, .n_head = 2, .n_embd = 32, .n_positions = 16}, 0, dtype);
  const NoGradGuard no_grad;
  for (const auto& [name, parameter] : model.parameters()) Tensor(parameter).copy_from(golden.tensor(name));
  return model;
}

}  // namespace tapehead
