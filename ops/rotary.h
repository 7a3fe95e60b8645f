// Rotary positions (Su et al., "RoFormer: enhanced transformer with rotary position embedding", 2021).
#pragma once

#include <span>

#include "tapehead/core/tape.h"

namespace tapehead {

/// cos and sin of position · frequency: (positions, frequencies).
struct RotaryTable {
  Tensor cosine, sine;
};

/// The table of positions 0 to `positions` - 1, f64 for a dtype of f64, else f32. Angles are f32 products, as
/// in Hugging Face's Llama, so that models from there see the positions that they were trained with. Throws
/// ValueError on a negative number of positions.
RotaryTable rotary_table(int64_t positions, std::span<const float> frequencies, DType dtype,
                         Device device = default_device());

/// Turns numbers i and i + D/2 of every head of x (B, H, T, D), together a vector of the plane, by the angle
/// i of the head's position: `table` holds those of positions first, ..., first + T - 1 and others, D/2
/// angles each. The result is laid out as (B, T, H, D). Throws ValueError on shapes, on an odd D, on
/// positions that the table does not have and on a table elsewhere than x, TypeError on integers and on a
/// table of another dtype than rotary_table gives for x's.
Tensor rotary(const Tensor& x, const RotaryTable& table, int64_t first = 0);

}  // namespace tapehead
