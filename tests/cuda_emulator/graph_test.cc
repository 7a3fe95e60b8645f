// Streams that record: what they may be asked for, each hazard planted and seen, and what a graph does.
#include <cublas_v2.h>
#include <gtest/gtest.h>

#include <vector>

#include "tapehead/tests/cuda_emulator/emulator.h"

namespace tapehead {
namespace {

__global__ void add_kernel(int* to, int by) { *to += by; }
__global__ void fail_kernel() { __trap(); }

cudaError_t launch(void (*kernel)(int*, int), int* to, int by) {
  cudaLaunchConfig_t config{};
  return cudaLaunchKernelEx(&config, kernel, to, by);
}

class Graph : public testing::Test {
 protected:
  void SetUp() override {
    cuda_emulator::reset();
    void* memory = nullptr;
    ASSERT_EQ(cudaMalloc(&memory, sizeof(int)), cudaSuccess);
    number_ = static_cast<int*>(memory);
    write(0);
  }
  void TearDown() override {
    cuda_emulator::reset();
    cudaFree(number_);
  }

  void write(int value) {
    EXPECT_EQ(cudaMemcpyAsync(number_, &value, sizeof value, cudaMemcpyHostToDevice, nullptr), cudaSuccess);
  }
  int read() {
    int value = 0;
    EXPECT_EQ(cudaMemcpyAsync(&value, number_, sizeof value, cudaMemcpyDeviceToHost, nullptr), cudaSuccess);
    return value;
  }
  static void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    ASSERT_EQ(cudaStreamBeginCapture(nullptr, mode), cudaSuccess);
  }
  /// Ends the recording; what can be launched.
  static cudaGraphExec_t end() {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(nullptr, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return exec;
  }
  /// Expects that `call` cannot be recorded, and makes what was recorded worthless.
  template <class F>
  void expect_refused(F call, cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    begin(mode);
    EXPECT_EQ(launch(add_kernel, number_, 1), cudaSuccess);
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(launch(add_kernel, number_, 1), cudaErrorStreamCaptureInvalidated);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(nullptr, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(launch(add_kernel, number_, 1), cudaSuccess) << "the stream is as before";
  }

  int* number_ = nullptr;
};

TEST_F(Graph, RecordsInsteadOfDoing) {
  begin();
  int by = 2;
  ASSERT_EQ(launch(add_kernel, number_, by), cudaSuccess);
  by = 100;  // parameters are those of the recording
  ASSERT_EQ(launch(add_kernel, number_, 3), cudaSuccess);
  const cudaGraphExec_t exec = end();
  EXPECT_EQ(read(), 0);
  const int64_t launches = cuda_emulator::launches();
  for (const int expected : {5, 10, 15}) {
    ASSERT_EQ(cudaGraphLaunch(exec, nullptr), cudaSuccess);
    EXPECT_EQ(read(), expected);
  }
  EXPECT_EQ(cuda_emulator::launches() - launches, 3) << "one a graph";
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

TEST_F(Graph, KeepsCopiesSetsAndProductsInTheirOrder) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 3 * sizeof(float)), cudaSuccess);
  auto* x = static_cast<float*>(memory);
  const float three[] = {3, 3, 0};
  ASSERT_EQ(cudaMemcpyAsync(x, three, sizeof three, cudaMemcpyHostToDevice, nullptr), cudaSuccess);
  cublasHandle_t handle = nullptr;
  ASSERT_EQ(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
  begin();
  {  // x[2] = 2 · x[0] · x[1] + x[2]; the factors are read at the recording
    const float two = 2, one = 1;
    ASSERT_EQ(cublasGemmStridedBatchedEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &two, x, CUDA_R_32F, 1, 0,
                                         x + 1, CUDA_R_32F, 1, 0, &one, x + 2, CUDA_R_32F, 1, 0, 1,
                                         CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
              CUBLAS_STATUS_SUCCESS);
  }
  ASSERT_EQ(cudaMemcpyAsync(x, x + 2, sizeof(float), cudaMemcpyDeviceToDevice, nullptr), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(x + 2, 0, sizeof(float), nullptr), cudaSuccess);
  const cudaGraphExec_t exec = end();
  const auto first = [&] {
    float value = 0;
    EXPECT_EQ(cudaMemcpyAsync(&value, x, sizeof value, cudaMemcpyDeviceToHost, nullptr), cudaSuccess);
    return value;
  };
  EXPECT_EQ(first(), 3);
  for (const float expected : {18.0f, 108.0f}) {
    ASSERT_EQ(cudaGraphLaunch(exec, nullptr), cudaSuccess);
    EXPECT_EQ(first(), expected);
  }
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

// ---- What cannot be recorded

TEST_F(Graph, AWaitIsRefused) {
  for (const auto mode : {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed})
    expect_refused([] { return cudaStreamSynchronize(nullptr); }, mode);
}

TEST_F(Graph, CopiesFromAndToTheHostAreRefused) {
  int host = 0;
  expect_refused(
      [&] { return cudaMemcpyAsync(&host, number_, sizeof host, cudaMemcpyDeviceToHost, nullptr); });
  expect_refused(
      [&] { return cudaMemcpyAsync(number_, &host, sizeof host, cudaMemcpyHostToDevice, nullptr); });
}

TEST_F(Graph, MemoryIsNeitherTakenNorGivenBack) {
  void *memory = nullptr, *other = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 4), cudaSuccess);
  expect_refused([&] { return cudaMalloc(&other, 4); });
  expect_refused([&] { return cudaFree(memory); });
  expect_refused([&] { return cudaMallocHost(&other, 4); });
  EXPECT_EQ(cudaFree(memory), cudaSuccess) << "it was not freed";
}

TEST_F(Graph, ARelaxedThreadMayTakeMemory) {
  begin();
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 4), cudaSuccess);
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(mode, cudaStreamCaptureModeRelaxed);
  EXPECT_EQ(cudaFree(memory), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(nullptr, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST_F(Graph, RecordingsBeginAndEndOnce) {
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(nullptr, &graph), cudaErrorInvalidValue);
  begin();
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGraphExecDestroy(end()), cudaSuccess);
}

TEST_F(Graph, AFailureIsToldAfterTheLaunch) {
  begin();
  cudaLaunchConfig_t config{};
  ASSERT_EQ(cudaLaunchKernelEx(&config, fail_kernel), cudaSuccess);
  ASSERT_EQ(launch(add_kernel, number_, 1), cudaSuccess);
  const cudaGraphExec_t exec = end();
  EXPECT_EQ(cudaGraphLaunch(exec, nullptr), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorLaunchFailure);
  cuda_emulator::reset();
  EXPECT_EQ(read(), 0) << "what came behind it was not done";
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

}  // namespace
}  // namespace tapehead
