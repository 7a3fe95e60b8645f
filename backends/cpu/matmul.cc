// Matrix products through OpenBLAS.
#include <cblas.h>

#include <cstdlib>
#include <limits>

#include "tapehead/backends/cpu/cpu_backend.h"
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

// BLAS's view of the last two dimensions: the order they are stored in and the distance between rows (or
// columns).
struct Layout {
  CBLAS_TRANSPOSE transpose;
  blasint leading;
};

static blasint blas_int(int64_t n) {
  check<ValueError>(n <= std::numeric_limits<blasint>::max(),
                    "[matmul] a dimension of {} is more than OpenBLAS takes", n);
  return static_cast<blasint>(n);
}

// False if neither dimension is dense.
static bool find_layout(const Tensor& x, Layout& layout) {
  const int64_t rows = x.size(-2), columns = x.size(-1);
  const int64_t row_step = x.strides()[static_cast<size_t>(x.dim() - 2)],
                column_step = x.strides()[static_cast<size_t>(x.dim() - 1)];
  if ((column_step == 1 || columns == 1) && (row_step >= columns || rows == 1)) {
    layout = {CblasNoTrans, blas_int(std::max({rows == 1 ? 0 : row_step, columns, int64_t{1}}))};
    return true;
  }
  if ((row_step == 1 || rows == 1) && (column_step >= rows || columns == 1)) {
    layout = {CblasTrans, blas_int(std::max({columns == 1 ? 0 : column_step, rows, int64_t{1}}))};
    return true;
  }
  return false;
}

static void gemm(Layout a, Layout b, blasint m, blasint n, blasint k, double alpha, const double* pa,
                 const double* pb, double beta, double* y) {
  cblas_dgemm(CblasRowMajor, a.transpose, b.transpose, m, n, k, alpha, pa, a.leading, pb, b.leading, beta, y,
              n);
}

static void gemm(Layout a, Layout b, blasint m, blasint n, blasint k, double alpha, const float* pa,
                 const float* pb, double beta, float* y) {
  cblas_sgemm(CblasRowMajor, a.transpose, b.transpose, m, n, k, static_cast<float>(alpha), pa, a.leading, pb,
              b.leading, static_cast<float>(beta), y, n);
}

void CpuBackend::matmul(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& y) {
  if (y.numel() == 0) return;
  if (is_half(y.dtype())) {  // OpenBLAS has no 16-bit product
    Tensor wide = beta == 0 ? Tensor(y.shape()) : y.to(DType::f32);
    matmul(alpha, a.to(DType::f32), b.to(DType::f32), beta, wide);
    copy(wide, y);
    return;
  }
  Layout la, lb;
  if (!find_layout(a, la)) return matmul(alpha, a.clone(), b, beta, y);
  if (!find_layout(b, lb)) return matmul(alpha, a, b.clone(), beta, y);

  const blasint m = blas_int(y.size(-2)), n = blas_int(y.size(-1)), k = blas_int(a.size(-1));
  const Shape batch(std::vector<int64_t>(y.shape().begin(), y.shape().end() - 2));
  const auto batch_strides = [&](const Tensor& x) {
    const Shape own(std::vector<int64_t>(x.shape().begin(), x.shape().end() - 2));
    return broadcast_strides(own, Strides(x.strides().begin(), x.strides().end() - 2), batch);
  };
  const NdLoop<3> loop(batch, {batch_strides(a), batch_strides(b), batch_strides(y)});
  const auto steps = loop.steps();
  visit_floating(y.dtype(), "matmul", [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_same_v<T, wide_t<T>>) {
      const T* pa = a.data<T>();
      const T* pb = b.data<T>();
      T* py = y.mutable_data<T>();
      loop.run(
          [&](const auto& at, int64_t count) {
            for (int64_t i = 0; i < count; ++i) {
              gemm(la, lb, m, n, k, alpha, pa + at[0] + i * steps[0], pb + at[1] + i * steps[1], beta,
                   py + at[2] + i * steps[2]);
            }
          },
          /*serial=*/true);  // each product is parallel inside
    }
  });
}

}  // namespace tapehead
