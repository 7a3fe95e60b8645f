// Tensors of random numbers, the same on every device: they depend on the generator alone, which moves on.
#pragma once

#include "tapehead/core/random.h"
#include "tapehead/core/tensor.h"

namespace tapehead {

/// Normal, by Box and Muller (1958). Throws TypeError for integer dtypes.
Tensor random_normal(const Shape& shape, double mean, double deviation, Generator& generator,
                     DType dtype = DType::f32, Device device = default_device());

}  // namespace tapehead
