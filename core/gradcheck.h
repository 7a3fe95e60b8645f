// Gradients compared with differences: the test that every differentiable function must pass.
#pragma once

#include <functional>
#include <vector>

#include "tapehead/core/tape.h"

namespace tapehead {

struct GradcheckOptions {
  double step = 1e-6;      ///< of the central difference
  double absolute = 1e-7;  ///< |analytic - numeric| <= absolute + relative · |numeric|
  double relative = 1e-5;
  uint64_t seed = 0;  ///< of the random upstream gradient
};

/// Compares `function`'s gradients with central differences, element by element, under a random upstream one.
///
/// `inputs` are f64; those that require a gradient are checked, strided ones as they are. They are
/// restored, and their grad() is cleared. `function` is called many times with the same handles and must
/// be deterministic. Throws TypeError on other dtypes, RuntimeError that names input, element and both
/// derivatives where they differ, or that no input requires a gradient.
void gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& function, std::vector<Tensor> inputs,
               const GradcheckOptions& options = {});

}  // namespace tapehead
