// The same operations on two devices, operation by operation.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tapehead/core/tensor.h"

namespace tapehead {

/// How far a result, or the gradient of an input, is from its reference.
struct Difference {
  std::string op;
  std::string name = {};  ///< of the tensor, where whoever runs the operations gives it one
  /// It is the gradient of this input, as far as `op` knows it; none: it is the result.
  std::optional<size_t> input = {};
  int64_t call = 1;  ///< which of its kind, from 1 on
  Shape shape = {};
  DType dtype = DType::f32;
  /// ‖tested - reference‖ / ‖reference‖ over all elements. Elements that are equal, NaN and NaN included, are
  /// no difference; infinite where one of two others is not finite, or where the reference is all 0.
  double error = 0;
};

/// Runs `reference`, then `tested`, and compares all that a TapeObserver sees of them (core/tape_observer.h):
/// in order. Each of `tested`'s results and gradients is replaced by its reference once it is compared, so
/// that every operation begins with the reference's numbers, and none is blamed for what came before it.
///
/// Both do the same operations, on whichever devices. Throws RuntimeError where they part, naming both
/// operations. Memory of the host: a copy of everything that `reference` computes.
std::vector<Difference> compare_runs(const std::function<void()>& reference,
                                     const std::function<void()>& tested);

}  // namespace tapehead
