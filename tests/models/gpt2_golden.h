// The 2-layer GPT-2 of tests/golden/gpt2.safetensors (tests/reference/README.md), and how far we are from it.
#pragma once

#include <cmath>
#include <string>

#include "tapehead/core/safetensors.h"
#include "tapehead/models/gpt.h"

namespace tapehead {

inline SafetensorsFile gpt2_golden() { return SafetensorsFile::open("tests/golden/gpt2.safetensors"); }

/// With the golden parameters, in f32 or converted to f64.
inline GPT gpt2_model(const SafetensorsFile& golden, DType dtype = DType::f32) {
  const GPT model({.vocab_size = 97, .n_layer = 2, .n_head = 2, .n_embd = 32, .n_positions = 16}, 0, dtype);
  const NoGradGuard no_grad;
  for (const auto& [name, parameter] : model.parameters()) Tensor(parameter).copy_from(golden.tensor(name));
  return model;
}

/// ‖actual - expected‖ / ‖expected‖ over the elements begin <= i < end.
inline double relative_error(const Tensor& actual, const Tensor& expected, size_t begin = 0,
                             size_t end = SIZE_MAX) {
  if (actual.shape() != expected.shape()) return INFINITY;
  const auto a = actual.to_vector<double>(), e = expected.to_vector<double>();
  double difference = 0, norm = 0;
  for (size_t i = begin; i < std::min(end, e.size()); ++i) {
    difference += (a[i] - e[i]) * (a[i] - e[i]);
    norm += e[i] * e[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace tapehead
