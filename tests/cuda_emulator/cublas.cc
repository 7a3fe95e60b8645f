// cuBLAS's calls, by the CPU backend's products. A matrix of cuBLAS stands by columns, so it is, read by
// rows, its transpose: C = A·B is computed as Cᵀ = Bᵀ·Aᵀ.
#include <cublas_v2.h>

#include <memory>

#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/tests/cuda_emulator/device.h"

using tapehead::DType;
using tapehead::Shape;
using tapehead::Strides;
using tapehead::Tensor;

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown";
}

const char* cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  static int handles;
  *handle = reinterpret_cast<cublasHandle_t>(&handles);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetWorkspace(cublasHandle_t, void*, size_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }

static DType dtype_of(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_64F: return DType::f64;
    case CUDA_R_16F: return DType::f16;
    case CUDA_R_16BF: return DType::bf16;
    default: return DType::f32;
  }
}

// The combinations in cuBLAS's table of cublasGemmEx that this project uses.
static bool is_supported(cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cublasComputeType_t compute) {
  if (a != b) return false;
  if ((compute == CUBLAS_COMPUTE_64F) != (a == CUDA_R_64F)) return false;
  return c == a || (c == CUDA_R_32F && (a == CUDA_R_16F || a == CUDA_R_16BF));
}

// (batch, rows, columns) over device memory, whose elements
// along columns are `column_step` apart, along rows `row_step`.
static Tensor view(const void* memory, cudaDataType_t type, int64_t batch, int64_t step, int64_t rows,
                   int64_t row_step, int64_t columns, int64_t column_step) {
  const DType dtype = dtype_of(type);
  const int64_t elements = (batch - 1) * step + (rows - 1) * row_step + (columns - 1) * column_step + 1;
  const std::shared_ptr<void> nobody(const_cast<void*>(memory), [](void*) {});
  auto storage =
      std::make_shared<tapehead::Storage>(nobody, const_cast<void*>(memory), elements * size_of(dtype));
  return Tensor::over(storage, Shape{}, dtype)
      .alias({batch, rows, columns}, {step, row_step, column_step}, 0);
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa,
                                          cublasOperation_t transb, int m, int n, int k, const void* alpha,
                                          const void* A, cudaDataType_t Atype, int lda, long long strideA,
                                          const void* B, cudaDataType_t Btype, int ldb, long long strideB,
                                          const void* beta, void* C, cudaDataType_t Ctype, int ldc,
                                          long long strideC, int batchCount, cublasComputeType_t computeType,
                                          cublasGemmAlgo_t) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (m < 0 || n < 0 || k < 0 || batchCount < 0 || lda < std::max(1, transa == CUBLAS_OP_N ? m : k) ||
      ldb < std::max(1, transb == CUBLAS_OP_N ? k : n) || ldc < std::max(1, m))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!is_supported(Atype, Btype, Ctype, computeType)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (m == 0 || n == 0 || batchCount == 0) return CUBLAS_STATUS_SUCCESS;
  const auto number = [&](const void* p) {
    return computeType == CUBLAS_COMPUTE_64F ? *static_cast<const double*>(p)
                                             : static_cast<double>(*static_cast<const float*>(p));
  };
  const bool a_plain = transa == CUBLAS_OP_N, b_plain = transb == CUBLAS_OP_N;
  const Tensor a = view(A, Atype, batchCount, strideA, k, a_plain ? lda : 1, m, a_plain ? 1 : lda);
  const Tensor b = view(B, Btype, batchCount, strideB, n, b_plain ? ldb : 1, k, b_plain ? 1 : ldb);
  const Tensor c = view(C, Ctype, batchCount, strideC, n, ldc, m, 1);
  const cudaError_t status =
      cuda_emulator::submit([a, b, c, from = number(alpha), to = number(beta)]() -> cudaError_t {
        Tensor result = c;
        const double wrong = 1 + cuda_emulator::device().settings.product_error;
        tapehead::cpu_backend().matmul(wrong * from, b, a, to, result);
        return cudaSuccess;
      });
  return status == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
