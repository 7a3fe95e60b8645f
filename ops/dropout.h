// Regularisation by random zeros (Srivastava et al., "Dropout", 2014).
#pragma once

#include "tapehead/core/random.h"
#include "tapehead/core/tape.h"

namespace tapehead {

/// Each element of x, 0 with probability p, else divided by 1 - p; the same numbers for any number of
/// threads. Takes x.numel() numbers of `generator`, none for p = 0, which gives x itself. Backward draws them
/// again. Throws ValueError unless 0 <= p < 1, TypeError for integers.
Tensor dropout(const Tensor& x, double p, Generator& generator);

}  // namespace tapehead
