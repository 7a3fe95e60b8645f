#include "tapehead/ops/dropout.h"

#include "tapehead/backends/backend.h"
#include "tapehead/ops/operands.h"

namespace tapehead {

static Tensor drop(const Tensor& x, double p, uint64_t seed, uint64_t first) {
  Tensor y = Tensor::empty_like(x);
  backend(y).dropout(x, p, seed, first, y);
  return y;
}

Tensor dropout(const Tensor& x, double p, Generator& generator) {
  check_operands("dropout", {{"x", x}});
  check<ValueError>(p >= 0 && p < 1, "[dropout] probability {}: it must be in [0, 1)", p);
  if (p == 0) {
    return record("dropout", x.detach(), {x}, {}, [](const Upstream& up) -> Gradients { return {up.grad}; });
  }
  const uint64_t seed = generator.seed, first = generator.take(x.numel());
  return record("dropout", drop(x, p, seed, first), {x}, {},
                [=](const Upstream& up) -> Gradients { return {drop(up.grad, p, seed, first)}; });
}

}  // namespace tapehead
