#include "tapehead/backends/cpu/matmul_openblas.h"

#include <cblas.h>

#include <cstdlib>
#include <limits>

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
constexpr int64_t kSmallDepth = 128;

static bool is_small(int64_t M, int64_t N, int64_t K) {
  return static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K) < kSmallProduct;
}

static blasint blas_int(int64_t n) {
  check<ValueError>(n <= std::numeric_limits<blasint>::max(),
                    "[matmul] a dimension of {} is more than OpenBLAS takes: multiply parts of it", n);
  return static_cast<blasint>(n);
}

// Products so small that preparing is most of them, those by a vector, and sums of few terms that are added
// to y. (OpenBLAS clears y before it adds to it where beta is 0, which oneDNN does not.)
bool suits_openblas(int64_t M, int64_t N, int64_t K, int64_t leading, double beta) {
  constexpr int64_t kThin = 8, kFewTerms = 64;
  if (std::max({M, N, K, leading}) > std::numeric_limits<blasint>::max()) return false;
  return is_small(M, N, K) || std::min({M, N, K}) < kThin || (beta != 0 && K <= kFewTerms);
}

// gemm: cblas_sgemm or cblas_dgemm.
template <class T, class Gemm>
static void multiply(Gemm gemm, int64_t M, int64_t N, int64_t K, T alpha, MatrixAt<T> a, MatrixAt<T> b,
                     T beta, T* y, int64_t y_leading) {
  const auto order = [](const MatrixLayout& layout) { return layout.transposed ? CblasTrans : CblasNoTrans; };
  const int64_t depth = is_small(M, N, K) ? kSmallDepth : std::max<int64_t>(K, 1);
  for (int64_t first = 0; first == 0 || first < K; first += depth) {
    gemm(CblasRowMajor, order(a.layout), order(b.layout), blas_int(M), blas_int(N),
         blas_int(std::min(depth, K - first)), alpha, a.first + first * a.layout.along(),
         blas_int(a.layout.leading), b.first + first * b.layout.down(), blas_int(b.layout.leading),
         first == 0 ? beta : T{1}, y, blas_int(y_leading));
  }
}

void matmul_openblas(int64_t M, int64_t N, int64_t K, double alpha, MatrixAt<float> a, MatrixAt<float> b,
                     double beta, float* y, int64_t y_leading) {
  multiply(cblas_sgemm, M, N, K, static_cast<float>(alpha), a, b, static_cast<float>(beta), y, y_leading);
}

void matmul_openblas(int64_t M, int64_t N, int64_t K, double alpha, MatrixAt<double> a, MatrixAt<double> b,
                     double beta, double* y, int64_t y_leading) {
  multiply(cblas_dgemm, M, N, K, alpha, a, b, beta, y, y_leading);
}

}  // namespace tapehead
