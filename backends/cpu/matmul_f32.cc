#include "tapehead/backends/cpu/matmul_f32.h"

#include <dnnl.h>

#include <algorithm>
#include <atomic>

#include "tapehead/core/error.h"
#include "tapehead/core/parallel.h"

namespace tapehead {

namespace {

/// Multiply-adds that are worth a thread's waking.
constexpr double kWorkOfThread = 1 << 18;
/// Tiles end at whole lines of 64 bytes.
constexpr int64_t kTileColumns = 16;
constexpr int64_t kTileRows = 8;

/// y cut into rows x columns tiles.
struct Grid {
  int64_t rows, columns;
};

/// A thread packs the rows of a and the columns of b that its tile needs: the fewest, together, are the best.
Grid grid_for(int64_t M, int64_t N, int64_t threads) {
  Grid best = {1, threads};
  for (int64_t rows = 2; rows <= threads; ++rows) {
    if (threads % rows != 0) continue;
    const Grid grid = {rows, threads / rows};
    if (M / grid.rows + N / grid.columns < M / best.rows + N / best.columns) best = grid;
  }
  return best;
}

struct Range {
  int64_t begin, size;
};

/// Part `i` of n cut into `parts`, all but the last one a multiple of `step` long; the last ones can be
/// empty.
Range part(int64_t n, int64_t parts, int64_t i, int64_t step) {
  const int64_t size = ((n + parts - 1) / parts + step - 1) / step * step;
  const int64_t begin = std::min(i * size, n);
  return {begin, std::min(size, n - begin)};
}

}  // namespace

void matmul_f32(int64_t M, int64_t N, int64_t K, float alpha, MatrixAt<float> a, MatrixAt<float> b,
                float beta, float* y, int64_t y_leading) {
  const double work = static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K);
  const auto threads =
      static_cast<int64_t>(std::clamp(work / kWorkOfThread, 1.0, static_cast<double>(omp_get_max_threads())));
  const Grid grid = omp_in_parallel() ? Grid{1, 1} : grid_for(M, N, threads);
  std::atomic<dnnl_status_t> status = dnnl_success;
  parallel_for(grid.rows * grid.columns, 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const Range rows = part(M, grid.rows, tile / grid.columns, kTileRows);
      const Range columns = part(N, grid.columns, tile % grid.columns, kTileColumns);
      if (rows.size == 0 || columns.size == 0) continue;
      const dnnl_status_t of_tile =
          dnnl_sgemm(a.layout.transposed ? 'T' : 'N', b.layout.transposed ? 'T' : 'N', rows.size,
                     columns.size, K, alpha, a.first + rows.begin * a.layout.down(), a.layout.leading,
                     b.first + columns.begin * b.layout.along(), b.layout.leading, beta,
                     y + rows.begin * y_leading + columns.begin, y_leading);
      if (of_tile != dnnl_success) status = of_tile;
    }
  });
  check<OutOfMemoryError>(status != dnnl_out_of_memory,
                          "out of memory: oneDNN's panels of ({}, {}) by ({}, {})", M, K, K, N);
  check<SystemError>(status == dnnl_success,
                     "[matmul] oneDNN's sgemm of ({}, {}) by ({}, {}) failed: status {}", M, K, K, N,
                     static_cast<int>(status.load()));
}

}  // namespace tapehead
