#include "tapehead/tools/product_floor.h"

#include <algorithm>
#include <limits>

#include "tapehead/backends/backend.h"
#include "tapehead/core/stopwatch.h"
#include "tapehead/core/view.h"
#include "tapehead/models/muon.h"
#include "tapehead/ops/random.h"

namespace tapehead {

// Tables that are looked up in are none of them.
int64_t multiplied_weights(const LanguageModel& model) {
  int64_t weights = model.head_weight().numel();
  for (const auto& parameter : model.parameters()) {
    if (MuonOptimizer::is_layer_matrix(parameter)) weights += parameter.second.numel();
  }
  return weights;
}

double product_flops(const LanguageModel& model, int64_t rows) {
  const ModelConfig& config = model.config();
  const double T = static_cast<double>(config.n_positions), N = static_cast<double>(rows) * T;
  const double attention = static_cast<double>(config.n_layer) * 2 *
                           (2 * N * T * static_cast<double>(config.n_head * config.head_width())) / 2;
  return 3 * (2 * N * static_cast<double>(multiplied_weights(model)) + attention);
}

ReferenceProduct::ReferenceProduct(DType dtype, int64_t columns) {
  constexpr int64_t kRows = 1024, kDepth = 1024;
  std::vector<DType> dtypes = {dtype};
  if (is_half(dtype)) dtypes.push_back(DType::f32);
  for (const DType of : dtypes) {
    Generator random{.seed = 1};
    const Tensor a = random_normal({kRows, kDepth}, 0, 1, random, of);
    const Tensor b = random_normal({columns, kDepth}, 0, 1, random, of);
    by_dtype_.push_back({a, transpose(b, 0, 1), Tensor({kRows, columns}, of)});
  }
}

double ReferenceProduct::seconds() const {
  double fastest = std::numeric_limits<double>::infinity();
  for (auto [a, b, y] : by_dtype_) {
    Backend& device = backend(y);
    device.synchronize();
    const Stopwatch stopwatch;
    device.matmul(1, a, b, 0, y);
    device.synchronize();
    fastest = std::min(fastest, stopwatch.seconds());
  }
  return fastest;
}

double ReferenceProduct::flops() const {
  const Operands& one = by_dtype_.front();
  return 2.0 * static_cast<double>(one.a.numel()) * static_cast<double>(one.b.size(1));
}

}  // namespace tapehead
