// What the benchmarks of `tapehead bench` share.
#pragma once

#include <functional>
#include <vector>

#include "tapehead/core/tensor.h"

namespace CLI {
class App;
}

namespace tapehead {

/// `bench head` and `bench train`, as subcommands of `bench`.
void add_bench_head(CLI::App& bench);
void add_bench_train(CLI::App& bench);

/// Wall time.
double seconds_of(const std::function<void()>& work);

/// Of one value or more.
double median(std::vector<double> values);

/// A product large enough for the full speed of the library behind it: the rate that others are measured against.
class ReferenceProduct {
 public:
  /// f16 has no library here, so f32 stands for it.
  explicit ReferenceProduct(DType dtype);

  /// Wall time of one product, into memory that is there already.
  double seconds();
  /// Floating-point operations of one product.
  static double flops() { return 2.0 * kRows * kDepth * kColumns; }

 private:
  static constexpr int64_t kRows = 1024, kDepth = 1024, kColumns = 8192;
  Tensor a_, b_, y_;
};

}  // namespace tapehead
