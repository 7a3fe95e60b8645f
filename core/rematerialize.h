// Time for memory: a part of the graph whose results are not kept, but computed again when backward comes to
// it (Chen et al., "Training deep nets with sublinear memory cost", 2016).
#pragma once

#include <functional>
#include <span>

#include "tapehead/core/random.h"
#include "tapehead/core/tape.h"

namespace tapehead {

/// y = function(x, random), recorded as one operation that keeps x alone (jax.remat, torch.utils.checkpoint).
/// Its backward calls `function` again, on the tape this time, and goes through that. Values and gradients
/// have the same bits as without.
///
/// `function` gives the same result whenever it is called with the same numbers. What else it reads may
/// require a gradient only if it is a leaf, and then stands in `parameters`; their gradients are added to
/// grad() when this operation's turn in backward comes. `random`, which may be null, is where it draws random
/// numbers from: the second call draws those of the first. `function` outlives the call: it must own what it
/// captures. Backward throws RuntimeError if x or a parameter was changed in place since.
Tensor rematerialize(std::function<Tensor(const Tensor& x, Generator* random)> function, const Tensor& x,
                     std::span<const Tensor> parameters, Generator* random = nullptr);

}  // namespace tapehead
