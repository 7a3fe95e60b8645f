#include "tapehead/backends/cpu/matmul_panels.h"

#include <algorithm>
#include <cstdlib>

#include "tapehead/backends/cpu/matmul_few_rows.h"

namespace tapehead {

// At most so many rows or columns at a time: three panels of 4 MiB stay in a thread's workspace, and widening
// one is little beside multiplying it.
constexpr int64_t kPanel = 1024;
constexpr int64_t kDepth = 1024;

// This thread's memory for panel `which`, as a matrix in x's order; not counted, as a library's is not.
static Tensor workspace(int which, const Tensor& x) {
  static thread_local std::shared_ptr<Storage> panels[3];
  if (!panels[which]) {
    const auto bytes = static_cast<int64_t>(sizeof(float)) * kPanel * kDepth;
    std::shared_ptr<void> memory(std::aligned_alloc(64, static_cast<size_t>(bytes)), std::free);
    check<OutOfMemoryError>(memory != nullptr, "out of memory: {} bytes for a product's workspace", bytes);
    panels[which] = std::make_shared<Storage>(memory, memory.get(), bytes);
  }
  const int64_t rows = x.size(0), columns = x.size(1);
  const bool by_columns = x.strides()[0] == 1 && columns > 1;
  return Tensor::over(panels[which], {}, DType::f32)
      .alias(x.shape(), by_columns ? Strides{1, rows} : Strides{columns, 1}, 0);
}

static Tensor block(const Tensor& x, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  return x.alias({rows, columns}, x.strides(), x.offset() + row * x.strides()[0] + column * x.strides()[1]);
}

// x as f32: itself, or its panel.
static Tensor widened(CpuBackend& backend, int which, const Tensor& x) {
  if (x.dtype() == DType::f32) return x;
  Tensor panel = workspace(which, x);
  if (panel.strides()[0] == 1 && x.size(1) > 1) {  // copied along memory
    Tensor flipped = panel.alias({x.size(1), x.size(0)}, {panel.strides()[1], panel.strides()[0]}, 0);
    backend.copy(x.alias({x.size(1), x.size(0)}, {x.strides()[1], x.strides()[0]}, x.offset()), flipped);
  } else {
    backend.copy(x, panel);
  }
  return panel;
}

void matmul_by_panels(CpuBackend& backend, double alpha, const Tensor& a, const Tensor& b, double beta,
                      const Tensor& y) {
  const int64_t M = y.size(0), N = y.size(1), K = a.size(1);
  for (int64_t m = 0; m < M; m += kPanel) {
    const int64_t rows = std::min(kPanel, M - m);
    for (int64_t n = 0; n < N; n += kPanel) {
      const int64_t columns = std::min(kPanel, N - n);
      Tensor target = block(y, m, rows, n, columns);
      Tensor sum = target.dtype() == DType::f32 ? target : workspace(2, target);
      if (beta != 0 && !sum.is_same(target)) backend.copy(target, sum);
      const bool few = matmul_few_rows(alpha, block(a, m, rows, 0, K), block(b, 0, K, n, columns), beta, sum);
      for (int64_t k = 0; !few && k < std::max<int64_t>(K, 1); k += kDepth) {
        const int64_t depth = std::min(kDepth, K - k);
        backend.matmul(alpha, widened(backend, 0, block(a, m, rows, k, depth)),
                       widened(backend, 1, block(b, k, depth, n, columns)), k == 0 ? beta : 1, sum);
      }
      if (!sum.is_same(target)) backend.copy(sum, target);
    }
  }
}

}  // namespace tapehead
