// Matrix products: those of f32 through oneDNN, or by a kernel of our own if they have few rows; those of
// bf16 through oneDNN where the processor is faster at them than at f32; those of f64, and of f32 what
// suits_openblas() names, through OpenBLAS.
#include <cblas.h>

#include <cstdlib>
#include <limits>

#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/backends/cpu/matmul_bf16.h"
#include "tapehead/backends/cpu/matmul_f32.h"
#include "tapehead/backends/cpu/matmul_few_rows.h"
#include "tapehead/backends/cpu/nd_loop.h"

namespace tapehead {

#ifdef __x86_64__
// OpenBLAS chooses its kernels by the processor's model number, and takes plain SSE for models younger than
// itself: an eighth of the speed. So it is told what the processor can do, unless the environment says so
// already. Its own choice is made in a constructor without priority; this one runs earlier.
__attribute__((constructor(101))) static void choose_openblas_kernels() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    setenv("OPENBLAS_CORETYPE", "SkylakeX", /*overwrite=*/0);
  } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    setenv("OPENBLAS_CORETYPE", "Haswell", /*overwrite=*/0);
  }
}
#endif

// OpenBLAS sums products of fewer multiply-adds in one go, however long their inner dimension is; so we sum
// parts of it here.
constexpr double kSmallProduct = 1 << 20;
constexpr blasint kSmallDepth = 128;

static bool is_small(blasint m, blasint n, blasint k) {
  return static_cast<double>(m) * n * k < kSmallProduct;
}

// What OpenBLAS does faster than oneDNN in f32: products so small that preparing is most of them, those by a
// vector, and sums of few terms that are added to y. (It clears y before it adds to it where beta is 0, which
// oneDNN does not.)
static bool suits_openblas(blasint m, blasint n, blasint k, float beta) {
  constexpr blasint kThin = 8, kFewTerms = 64;
  return is_small(m, n, k) || std::min({m, n, k}) < kThin || (beta != 0 && k <= kFewTerms);
}

static blasint blas_int(int64_t n) {
  check<ValueError>(n <= std::numeric_limits<blasint>::max(),
                    "[matmul] a dimension of {} is more than OpenBLAS takes", n);
  return static_cast<blasint>(n);
}

static CBLAS_TRANSPOSE order(const MatrixLayout& layout) {
  return layout.transposed ? CblasTrans : CblasNoTrans;
}

static void gemm(blasint m, blasint n, blasint k, double alpha, MatrixAt<double> a, MatrixAt<double> b,
                 double beta, double* y, blasint y_leading) {
  cblas_dgemm(CblasRowMajor, order(a.layout), order(b.layout), m, n, k, alpha, a.first,
              blas_int(a.layout.leading), b.first, blas_int(b.layout.leading), beta, y, y_leading);
}

static void gemm(blasint m, blasint n, blasint k, double alpha, MatrixAt<float> a, MatrixAt<float> b,
                 double beta, float* y, blasint y_leading) {
  const auto scale = static_cast<float>(alpha), keep = static_cast<float>(beta);
  if (suits_openblas(m, n, k, keep)) {
    cblas_sgemm(CblasRowMajor, order(a.layout), order(b.layout), m, n, k, scale, a.first,
                blas_int(a.layout.leading), b.first, blas_int(b.layout.leading), keep, y, y_leading);
  } else {
    matmul_f32(m, n, k, scale, a, b, keep, y, y_leading);
  }
}

// ---- 16-bit operands that matmul_bf16() does not take. No library here has a product for them: panels are
// widened to f32, in which products of 16-bit numbers are exact, and multiplied there.

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
    check<SystemError>(memory != nullptr, "out of memory: {} bytes for a product's workspace", bytes);
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

// a (M, K), b (K, N), y (M, N), each f32, f16 or bf16.
static void matmul_by_panels(CpuBackend& backend, double alpha, const Tensor& a, const Tensor& b, double beta,
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

void CpuBackend::matmul(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& y) {
  if (y.numel() == 0) return;
  if (is_half(y.dtype()) || is_half(a.dtype()) || is_half(b.dtype())) {
    if (matmul_bf16(alpha, a, b, beta, y) || matmul_few_rows(alpha, a, b, beta, y)) return;
    if (y.dim() == 2) return matmul_by_panels(*this, alpha, a, b, beta, y);
    for (int64_t i = 0; i < y.size(0); ++i) {  // one matrix of the outermost batch dimension at a time
      const auto at = [&](const Tensor& x) {
        if (x.dim() < y.dim()) return x;
        const int64_t step = x.size(0) == 1 ? 0 : x.strides()[0];
        return x.alias(x.shape().without(0), Strides(x.strides().begin() + 1, x.strides().end()),
                       x.offset() + i * step);
      };
      Tensor target = at(y);
      matmul(alpha, at(a), at(b), beta, target);
    }
    return;
  }
  if (matmul_few_rows(alpha, a, b, beta, y)) return;
  const auto a_layout = matrix_layout(a), b_layout = matrix_layout(b);
  if (!a_layout) return matmul(alpha, a.clone(), b, beta, y);
  if (!b_layout) return matmul(alpha, a, b.clone(), beta, y);

  const blasint m = blas_int(y.size(-2)), n = blas_int(y.size(-1)), k = blas_int(a.size(-1));
  const blasint y_leading = m == 1 ? n : blas_int(y.strides()[static_cast<size_t>(y.dim() - 2)]);
  const Shape batch = batch_shape(y);
  const NdLoop<3> loop(batch, {batch_strides(a, batch), batch_strides(b, batch), batch_strides(y, batch)});
  const auto steps = loop.steps();
  const blasint depth = is_small(m, n, k) ? kSmallDepth : std::max<blasint>(k, 1);
  visit_floating(y.dtype(), "matmul", [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_same_v<T, wide_t<T>>) {
      const T* pa = a.data<T>();
      const T* pb = b.data<T>();
      T* py = y.mutable_data<T>();
      loop.run(
          [&](const auto& at, int64_t count) {
            for (int64_t i = 0; i < count; ++i) {
              for (blasint first = 0; first == 0 || first < k; first += depth) {
                gemm(m, n, std::min(depth, k - first), alpha,
                     {pa + at[0] + i * steps[0] + first * a_layout->along(), *a_layout},
                     {pb + at[1] + i * steps[1] + first * b_layout->down(), *b_layout}, first == 0 ? beta : 1,
                     py + at[2] + i * steps[2], y_leading);
              }
            }
          },
          /*serial=*/true);  // each product is parallel inside
    }
  });
}

}  // namespace tapehead
