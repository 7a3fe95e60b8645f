// Matrix products through cuBLAS.
//
// f64 in f64, f32 in f32, f16 and bf16 with sums in f32, rounded once. TF32, which
// is faster and keeps 10 bits of each factor, only where the environment says
// TAPEHEAD_TF32=1. Operands of other layouts or mixed dtypes are copied first.
#include <cstdlib>
#include <cstring>

#include "tapehead/backends/cuda/cuda_backend.h"
#include "tapehead/backends/cuda/scratch.h"
#include "tapehead/backends/cuda/strided.h"
#include "tapehead/backends/matrix_layout.h"

namespace tapehead {

static int blas_int(int64_t n) {
  check<ValueError>(n <= std::numeric_limits<int>::max(),
                    "[matmul] a dimension of {} is more than cuBLAS takes", n);
  return static_cast<int>(n);
}

static cublasOperation_t operation(const MatrixLayout& layout) {
  return layout.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

// x, or its elements as cuBLAS can take them.
static Tensor factor(CudaBackend& backend, const Tensor& x, DType dtype) {
  if (x.dtype() == dtype && matrix_layout(x)) return x;
  Tensor dense = scratch_tensor(backend, x.shape(), dtype);
  backend.copy(x, dense);
  return dense;
}

static cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return CUDA_R_64F;
    case DType::f16: return CUDA_R_16F;
    case DType::bf16: return CUDA_R_16BF;
    default: return CUDA_R_32F;
  }
}

static cublasComputeType_t compute_type(DType dtype) {
  if (dtype == DType::f64) return CUBLAS_COMPUTE_64F;
  const char* tf32 = std::getenv("TAPEHEAD_TF32");
  return dtype == DType::f32 && tf32 && std::strcmp(tf32, "1") == 0 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                    : CUBLAS_COMPUTE_32F;
}

template <class T>
static __global__ void times_beta_kernel(StridedIndex<1> index, wide_t<T> beta, T* y) {
  for_each_index(index.count, [&](int64_t i) {
    T& element = y[index(i)[0]];
    element = narrow<T>(beta == 0 ? 0 : beta * widen(element));
  });
}

void CudaBackend::matmul(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& y) {
  if (y.numel() == 0) return;
  if (a.size(-1) == 0) {  // nothing is summed
    const StridedIndex<1> index(y.shape(), {y.strides()});
    return visit_floating(y.dtype(), "matmul", [&]<class T>(std::type_identity<T>) {
      stream_.launch("matmul (beta)", grid_for(stream_, index.count), times_beta_kernel<T>, index,
                     static_cast<wide_t<T>>(beta), y.mutable_data<T>());
    });
  }
  // cuBLAS takes two factors of one dtype, and a result of theirs or of f32.
  const DType factors = a.dtype() == b.dtype() ? a.dtype() : DType::f32;
  if (y.dtype() == factors || y.dtype() == DType::f32)
    return multiply(alpha, factor(*this, a, factors), factor(*this, b, factors), beta, y);
  Tensor sum = scratch_tensor(*this, y.shape(), DType::f32);
  if (beta != 0) copy(y, sum);
  multiply(alpha, factor(*this, a, factors), factor(*this, b, factors), beta, sum);
  copy(sum, y);
}

// cuBLAS's matrices stand by columns: it computes yᵀ = bᵀ · aᵀ.
void CudaBackend::multiply(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& y) {
  const MatrixLayout la = matrix_layout(a).value(), lb = matrix_layout(b).value(),
                     ly = matrix_layout(y).value();
  const int m = blas_int(y.size(-2)), n = blas_int(y.size(-1)), k = blas_int(a.size(-1));
  const Shape batch = batch_shape(y);
  const StridedIndex<3> index(batch,
                              {batch_strides(a, batch), batch_strides(b, batch), batch_strides(y, batch)});
  const cublasComputeType_t compute = compute_type(a.dtype());
  const float alpha32 = static_cast<float>(alpha), beta32 = static_cast<float>(beta);
  const bool wide = compute == CUBLAS_COMPUTE_64F;
  const void *pa = wide ? static_cast<const void*>(&alpha) : &alpha32,
             *pb = wide ? static_cast<const void*>(&beta) : &beta32;
  const auto at = [](const void* memory, DType dtype, int64_t offset) {
    return static_cast<char*>(const_cast<void*>(memory)) + offset * size_of(dtype);
  };
  const void *first_a = a.raw_data(), *first_b = b.raw_data();
  void* first_y = y.mutable_raw_data();
  const int64_t run = index.sizes[0];  // matrices at one distance from each other
  const std::lock_guard lock(products_);
  for (int64_t i = 0; i < index.count; i += run) {
    const auto offset = index(i);
    stream_.check("cublasGemmStridedBatchedEx",
                  cublasGemmStridedBatchedEx(
                      cublas_, operation(lb), operation(la), n, m, k, pa, at(first_b, b.dtype(), offset[1]),
                      data_type(b.dtype()), blas_int(lb.leading), index.steps[0][1],
                      at(first_a, a.dtype(), offset[0]), data_type(a.dtype()), blas_int(la.leading),
                      index.steps[0][0], pb, at(first_y, y.dtype(), offset[2]), data_type(y.dtype()),
                      blas_int(ly.leading), index.steps[0][2], blas_int(run), compute, CUBLAS_GEMM_DEFAULT));
  }
}

}  // namespace tapehead
