#include "tapehead/ops/random.h"

#include "tapehead/backends/backend.h"

namespace tapehead {

static Tensor allocate(const char* op, const Shape& shape, DType dtype, Device device) {
  check<TypeError>(is_floating(dtype), "[{}] takes a floating dtype, not {}", op, dtype);
  return Tensor(shape, dtype, device);
}

Tensor random_uniform(const Shape& shape, double low, double high, Generator& generator, DType dtype,
                      Device device) {
  Tensor y = allocate("random_uniform", shape, dtype, device);
  backend(y).uniform(low, high, generator.seed, generator.take(y.numel()), y);
  return y;
}

Tensor random_normal(const Shape& shape, double mean, double deviation, Generator& generator, DType dtype,
                     Device device) {
  Tensor y = allocate("random_normal", shape, dtype, device);
  backend(y).normal(mean, deviation, generator.seed, generator.take(y.numel()), y);
  return y;
}

}  // namespace tapehead
