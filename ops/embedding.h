// Rows of a table, looked up by index.
#pragma once

#include "tapehead/core/tape.h"

namespace tapehead {

/// Row ids[i] of `weight` for every i: weight (V, F) floating, ids (...) i64 or i32 in [0, V) -> (..., F).
/// The gradient adds equal ids' rows in row-major order of `ids`, whatever the number of threads.
/// Throws ValueError that names the first id out of range and its position (perhaps only when the
/// device is next waited for), the shape of a weight that is no matrix, or two different devices;
/// TypeError on other dtypes.
Tensor embedding(const Tensor& weight, const Tensor& ids);

}  // namespace tapehead
