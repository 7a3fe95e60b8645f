#include "tapehead/ops/random.h"

#include "tapehead/backends/backend.h"

namespace tapehead {

Tensor random_normal(const Shape& shape, double mean, double deviation, Generator& generator, DType dtype,
                     Device device) {
  check<TypeError>(is_floating(dtype), "[random_normal] takes a floating dtype, not {}", dtype);
  Tensor y(shape, dtype, device);
  backend(y).normal(mean, deviation, generator.seed, generator.take(y.numel()), y);
  return y;
}

}  // namespace tapehead
