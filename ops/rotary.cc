#include "tapehead/ops/rotary.h"

#include <cmath>
#include <vector>

#include "tapehead/backends/backend.h"
#include "tapehead/core/view.h"
#include "tapehead/ops/heads.h"
#include "tapehead/ops/operands.h"

namespace tapehead {

RotaryTable rotary_table(int64_t positions, std::span<const float> frequencies, DType dtype, Device device) {
  std::vector<double> cosines, sines;
  for (int64_t t = 0; t < positions; ++t) {
    for (const float frequency : frequencies) {
      const auto angle = static_cast<double>(static_cast<float>(t) * frequency);
      cosines.push_back(std::cos(angle));
      sines.push_back(std::sin(angle));
    }
  }
  const Shape shape{positions, std::ssize(frequencies)};
  const DType wide = arithmetic_dtype(dtype);
  return {Tensor::from<double>(shape, cosines, device).to(wide),
          Tensor::from<double>(shape, sines, device).to(wide)};
}

static Tensor rotated(const Tensor& x, const Tensor& cosine, const Tensor& sine, bool backward) {
  Tensor y = joined_heads(x.shape(), x.dtype(), x.device());
  tapehead::backend(y).rotary(dense_heads(x), cosine, sine, backward, y);
  return y;
}

Tensor rotary(const Tensor& x, const RotaryTable& table, int64_t first) {
  check_operands("rotary", {{"x", x}});
  check_devices("rotary", {{"x", x}, {"table.cosine", table.cosine}, {"table.sine", table.sine}});
  check<ValueError>(x.dim() == 4 && x.size(3) % 2 == 0,
                    "[rotary] x of shape {}: it must be (B, H, T, D), with an even D", x.shape());
  for (const Tensor& t : {table.cosine, table.sine}) {
    check<ValueError>(
        t.dim() == 2 && t.size(1) == x.size(3) / 2 && first >= 0 && first + x.size(2) <= t.size(0),
        "[rotary] a table of shape {} for x of shape {} from position {} on: it must be (positions, {}), "
        "with at least {} positions",
        t.shape(), x.shape(), first, x.size(3) / 2, first + x.size(2));
    check<TypeError>(t.dtype() == arithmetic_dtype(x.dtype()),
                     "[rotary] a table of {} for x of {}: it must be {}", t.dtype(), x.dtype(),
                     arithmetic_dtype(x.dtype()));
  }
  const Tensor cosine = slice(table.cosine.detach(), 0, first, first + x.size(2)),
               sine = slice(table.sine.detach(), 0, first, first + x.size(2));
  return record(
      "rotary", rotated(x, cosine, sine, false), {x}, {cosine, sine},
      [](const Upstream& up) -> Gradients { return {rotated(up.grad, up.saved(0), up.saved(1), true)}; });
}

}  // namespace tapehead
