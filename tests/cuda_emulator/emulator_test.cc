// Each hazard that the emulator is there for, planted, and seen.
#include "tapehead/tests/cuda_emulator/emulator.h"

#include <cublas_v2.h>
#include <cuda_mma.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <bit>
#include <numeric>
#include <set>
#include <vector>

#include "tapehead/tests/cuda_emulator/sanitizer.h"

namespace tapehead {
extern thread_local unsigned char dynamic_shared_bytes[];

namespace {

using cuda_emulator::last_problem;
using testing::HasSubstr;

// Device memory for n numbers, which ends with the test.
template <class T>
class Numbers {
 public:
  explicit Numbers(size_t n) : n_(n) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, n * sizeof(T)), cudaSuccess);
    data_ = static_cast<T*>(memory);
  }
  explicit Numbers(const std::vector<T>& values) : Numbers(values.size()) {
    EXPECT_EQ(cudaMemcpyAsync(data_, values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice, nullptr),
              cudaSuccess);
  }
  ~Numbers() {
    cuda_emulator::reset();
    cudaFree(data_);
  }
  T* data() const { return data_; }
  std::vector<T> values() const {
    std::vector<T> v(n_);
    EXPECT_EQ(cudaMemcpyAsync(v.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost, nullptr), cudaSuccess);
    return v;
  }

 private:
  size_t n_;
  T* data_ = nullptr;
};

template <class... P, class... A>
cudaError_t launch(dim3 grid, dim3 block, size_t shared, void (*kernel)(P...), A... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

cudaError_t synchronize() { return cudaStreamSynchronize(nullptr); }

class Emulator : public testing::Test {
 protected:
  void SetUp() override { cuda_emulator::reset(); }
  void TearDown() override { cuda_emulator::reset(); }
};

// ---- What kernels may do

__global__ void number_threads(int* out) {
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] += static_cast<int>(block * 1000 + thread);
}

TEST_F(Emulator, RunsEveryThreadOnce) {
  const Numbers<int> out(std::vector<int>(2 * 3 * 2 * 4 * 3 * 2, 0));
  ASSERT_EQ(launch(dim3(2, 3, 2), dim3(4, 3, 2), 0, number_threads, out.data()), cudaSuccess);
  const std::vector<int> values = out.values();
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<int>(i / 24 * 1000 + i % 24));
}

__global__ void record_order(int* out, int* next) {
  out[atomicAdd(next, 1)] = static_cast<int>(blockIdx.x * 8 + threadIdx.x);
}

TEST_F(Emulator, ShufflesThreadsAndBlocksBySeed) {
  std::set<std::vector<int>> orders;
  for (const uint64_t seed : {1, 2, 3, 3}) {
    cuda_emulator::reset({.seed = seed});
    const Numbers<int> out(32), next(std::vector<int>{0});
    ASSERT_EQ(launch(4, 8, 0, record_order, out.data(), next.data()), cudaSuccess);
    std::vector<int> order = out.values();
    orders.insert(order);
    std::sort(order.begin(), order.end());
    for (int i = 0; i < 32; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  }
  EXPECT_EQ(orders.size(), 3u);
}

template <bool barrier>
__global__ void reverse(const float* in, float* out) {
  auto* shared = reinterpret_cast<float*>(dynamic_shared_bytes);
  shared[threadIdx.x] = in[threadIdx.x];
  if (barrier) __syncthreads();
  out[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

TEST_F(Emulator, MissingBarrierIsSeen) {
  std::vector<float> in(256), reversed(256);
  std::iota(in.begin(), in.end(), 1.0f);
  std::copy(in.rbegin(), in.rend(), reversed.begin());
  const Numbers<float> from(in), to(256);
  ASSERT_EQ(launch(1, 256, 1024, reverse<true>, from.data(), to.data()), cudaSuccess);
  EXPECT_EQ(to.values(), reversed);
  ASSERT_EQ(launch(1, 256, 1024, reverse<false>, from.data(), to.data()), cudaSuccess);
  EXPECT_NE(to.values(), reversed);
}

__global__ void sum_with_barriers(const int* in, int* out) {
  __shared__ int parts[256];
  parts[threadIdx.x] = in[threadIdx.x];
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *out = parts[0];
}

TEST_F(Emulator, MeetsAtEachBarrierOfALoop) {
  std::vector<int> in(256);
  std::iota(in.begin(), in.end(), 0);
  for (uint64_t seed = 1; seed < 20; ++seed) {
    cuda_emulator::reset({.seed = seed});
    const Numbers<int> from(in), to(1);
    ASSERT_EQ(launch(1, 256, 0, sum_with_barriers, from.data(), to.data()), cudaSuccess);
    EXPECT_EQ(to.values()[0], 255 * 128);
  }
}

__global__ void warp_functions(int* out) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int* to = out + threadIdx.x * 10;
  to[0] = __shfl_sync(0xffffffff, lane * 10, 5);
  to[1] = __shfl_sync(0xffffffff, lane, 3, 8);
  to[2] = __shfl_up_sync(0xffffffff, lane, 2);
  to[3] = __shfl_down_sync(0xffffffff, lane, 2, 16);
  to[4] = __shfl_xor_sync(0xffffffff, lane, 5);
  to[5] = static_cast<int>(__ballot_sync(0xffffffff, lane % 3 == 0));
  to[6] = __any_sync(0xffffffff, lane == 7) + 2 * __any_sync(0xffffffff, lane > 31);
  to[7] = __all_sync(0xffffffff, lane < 32) + 2 * __all_sync(0xffffffff, lane < 31);
  if (lane < 16) to[8] = __shfl_xor_sync(0xffff, lane, 8);  // half a warp by itself
  __syncwarp();
  to[9] = static_cast<int>(__shfl_xor_sync(0xffffffff, 0x1p40 * lane, 1) * 0x1p-40);  // 8 bytes
}

TEST_F(Emulator, WarpFunctions) {
  const Numbers<int> out(std::vector<int>(64 * 10, -1));
  ASSERT_EQ(launch(1, 64, 0, warp_functions, out.data()), cudaSuccess);
  ASSERT_EQ(synchronize(), cudaSuccess) << last_problem();
  const std::vector<int> v = out.values();
  for (int thread = 0; thread < 64; ++thread) {
    const int lane = thread % 32;
    const int* got = v.data() + thread * 10;
    EXPECT_EQ(got[0], 50);
    EXPECT_EQ(got[1], lane / 8 * 8 + 3);
    EXPECT_EQ(got[2], lane < 2 ? lane : lane - 2);
    EXPECT_EQ(got[3], lane % 16 < 14 ? lane + 2 : lane);
    EXPECT_EQ(got[4], lane ^ 5);
    EXPECT_EQ(got[5], 0x49249249);
    EXPECT_EQ(got[6], 1);
    EXPECT_EQ(got[7], 1);
    EXPECT_EQ(got[8], lane < 16 ? lane ^ 8 : -1);
    EXPECT_EQ(got[9], lane ^ 1);
  }
}

__global__ void block_votes(int* out) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int round = 0; round < 3; ++round) {
    int* to = out + (round * 64 + thread) * 3;
    to[0] = __syncthreads_count(thread % 3 == round);
    to[1] = __syncthreads_or(round == 1 && thread == 63);
    to[2] = __syncthreads_and(round == 1 || thread != 5);
  }
}

TEST_F(Emulator, BlockVotes) {
  const Numbers<int> out(std::vector<int>(3 * 64 * 3, -1));
  ASSERT_EQ(launch(1, 64, 0, block_votes, out.data()), cudaSuccess);
  ASSERT_EQ(synchronize(), cudaSuccess) << last_problem();
  const std::vector<int> v = out.values();
  for (size_t round = 0; round < 3; ++round) {
    for (size_t thread = 0; thread < 64; ++thread) {
      const int* got = v.data() + (round * 64 + thread) * 3;
      EXPECT_EQ(got[0], round == 0 ? 22 : 21);
      EXPECT_EQ(got[1], round == 1);
      EXPECT_EQ(got[2], round == 1);
    }
  }
}

// bf16 of a small integer.
uint32_t small_bits(int x) { return std::bit_cast<uint32_t>(static_cast<float>(x)) >> 16; }

// a (16, 16), b (16, 8) and c (16, 8), all by rows: elements as mma.m16n8k16 spreads them over the lanes.
__global__ void multiply_tile(const int* a, const int* b, float* c) {
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  const auto pair = [](int low, int high) { return small_bits(low) | small_bits(high) << 16; };
  uint32_t x[4], y[2];
  for (int i = 0; i < 4; ++i) {
    const int* from = a + (g + i % 2 * 8) * 16 + 2 * t + i / 2 * 8;
    x[i] = pair(from[0], from[1]);
  }
  for (int i = 0; i < 2; ++i) {
    const int* from = b + (2 * t + i * 8) * 8 + g;
    y[i] = pair(from[0], from[8]);
  }
  float sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = c[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  cuda_emulator::multiply_add_16x8x16(x, y, sums);
  for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sums[i];
}

TEST_F(Emulator, TensorCoreProduct) {
  std::vector<int> a(16 * 16), b(16 * 8);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<int>(i * 7 % 11) - 5;
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<int>(i * 5 % 13) - 6;
  const Numbers<int> on_a(a), on_b(b);
  const Numbers<float> c(std::vector<float>(16 * 8, 2));
  ASSERT_EQ(launch(1, 32, 0, multiply_tile, on_a.data(), on_b.data(), c.data()), cudaSuccess);
  ASSERT_EQ(synchronize(), cudaSuccess) << last_problem();
  const std::vector<float> got = c.values();
  for (size_t i = 0; i < 16; ++i) {
    for (size_t j = 0; j < 8; ++j) {
      int sum = 2;
      for (size_t k = 0; k < 16; ++k) sum += a[i * 16 + k] * b[k * 8 + j];
      EXPECT_EQ(got[i * 8 + j], static_cast<float>(sum)) << i << ", " << j;
    }
  }
}

__global__ void count_all(unsigned* counter, int* largest, float* sum) {
  atomicAdd(counter, 1u);
  atomicMax(largest, static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x));
  atomicAdd(sum, 0.5f);
  unsigned seen = counter[1];
  while (atomicCAS(counter + 1, seen, seen + 2) != seen) seen = counter[1];
}

TEST_F(Emulator, Atomics) {
  const Numbers<unsigned> counter(std::vector<unsigned>{0, 0});
  const Numbers<int> largest(std::vector<int>{-1});
  const Numbers<float> sum(std::vector<float>{0});
  ASSERT_EQ(launch(3, 50, 0, count_all, counter.data(), largest.data(), sum.data()), cudaSuccess);
  EXPECT_EQ(counter.values(), (std::vector<unsigned>{150, 300}));
  EXPECT_EQ(largest.values()[0], 149);
  EXPECT_EQ(sum.values()[0], 75);
}

// ---- What they may not

__global__ void some_skip_the_barrier() {
  if (threadIdx.x != 5) __syncthreads();
}

__global__ void two_barriers() {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST_F(Emulator, DivergentBarrierFailsTheLaunch) {
  ASSERT_EQ(launch(1, 32, 0, some_skip_the_barrier), cudaSuccess);
  EXPECT_EQ(synchronize(), cudaErrorLaunchFailure);
  EXPECT_THAT(last_problem(), HasSubstr("31 wait at barrier emulator_test.cc"));
  EXPECT_THAT(last_problem(), HasSubstr("1 have ended"));
  cuda_emulator::reset();
  ASSERT_EQ(launch(1, 32, 0, two_barriers), cudaSuccess);
  EXPECT_EQ(synchronize(), cudaErrorLaunchFailure);
  EXPECT_THAT(last_problem(), HasSubstr("16 wait at barrier"));
}

__global__ void some_skip_the_shuffle(int* out) {
  if (threadIdx.x < 20) *out = __shfl_sync(0xffffffff, 1, 0);
}

__global__ void outside_its_mask(int* out) { *out = __shfl_sync(0xfffffffe, 1, 0); }

TEST_F(Emulator, DivergentWarpFunctionFailsTheLaunch) {
  const Numbers<int> out(1);
  ASSERT_EQ(launch(1, 32, 0, some_skip_the_shuffle, out.data()), cudaSuccess);
  EXPECT_EQ(synchronize(), cudaErrorLaunchFailure);
  EXPECT_THAT(last_problem(), HasSubstr("20 wait at warp function"));
  cuda_emulator::reset();
  ASSERT_EQ(launch(1, 32, 0, outside_its_mask, out.data()), cudaSuccess);
  EXPECT_EQ(synchronize(), cudaErrorLaunchFailure);
  EXPECT_THAT(last_problem(), HasSubstr("thread 0 is not in its own mask"));
  cuda_emulator::reset();
  ASSERT_EQ(launch(1, 20, 0, some_skip_the_shuffle, out.data()), cudaSuccess);
  EXPECT_EQ(synchronize(), cudaErrorLaunchFailure);
  EXPECT_THAT(last_problem(), HasSubstr("which a block of 20 threads has not"));
}

__global__ void write_shared(size_t at) { dynamic_shared_bytes[at] = 1; }

TEST_F(Emulator, WriteBeyondDynamicSharedMemoryIsSeen) {
  ASSERT_EQ(launch(1, 1, 100, write_shared, size_t{99}), cudaSuccess);
  ASSERT_EQ(synchronize(), cudaSuccess);
#ifdef CUDA_EMULATOR_ASAN
  EXPECT_DEATH(launch(1, 1, 100, write_shared, size_t{104}), "use-after-poison");
#else
  ASSERT_EQ(launch(1, 1, 100, write_shared, size_t{100}), cudaSuccess);
  EXPECT_EQ(synchronize(), cudaErrorLaunchFailure);
  EXPECT_THAT(last_problem(), HasSubstr("beyond its 100 bytes"));
#endif
}

TEST_F(Emulator, HostDoesNotTouchDeviceMemory) {
  const Numbers<int> in(std::vector<int>{1, 2, 3});
  EXPECT_DEATH(EXPECT_EQ(*const_cast<volatile int*>(in.data()), 1), "");
}

#ifdef CUDA_EMULATOR_ASAN
__global__ void read_global(const int* in, int* out, int at) { *out = in[at]; }

TEST_F(Emulator, ReadBeyondGlobalMemoryIsSeen) {
  const Numbers<int> in(std::vector<int>{1, 2, 3}), out(1);
  EXPECT_DEATH(launch(1, 1, 0, read_global, in.data(), out.data(), 3), "heap-buffer-overflow");
  EXPECT_DEATH(launch(1, 1, 0, read_global, in.data(), out.data(), -1), "heap-buffer-overflow");
}
#endif

__global__ void fail() { __trap(); }

TEST_F(Emulator, KernelFailureIsSticky) {
  const Numbers<int> out(1);
  ASSERT_EQ(launch(1, 1, 0, fail), cudaSuccess) << "it is told later";
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 4), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure) << "again and again";
  EXPECT_EQ(launch(1, 1, 0, number_threads, out.data()), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaMemsetAsync(out.data(), 0, 4, nullptr), cudaErrorLaunchFailure);
  cuda_emulator::reset({.blocking = true});
  EXPECT_EQ(launch(1, 1, 0, fail), cudaErrorLaunchFailure) << "at the launch, where that was asked for";
}

TEST_F(Emulator, RefusesLaunchesThatADeviceRefuses) {
  EXPECT_EQ(launch(1, 1024, 0, two_barriers), cudaSuccess);
  cuda_emulator::reset();
  EXPECT_EQ(launch(1, 1025, 0, two_barriers), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, dim3(32, 33), 0, two_barriers), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(0, 32, 0, two_barriers), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1, 65536), 32, 0, two_barriers), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "a refusal is not sticky";
  const auto* kernel = reinterpret_cast<const void*>(&write_shared);
  EXPECT_EQ(launch(1, 1, 50 << 10, write_shared, size_t{0}), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 300 << 10),
            cudaErrorInvalidValue);
  ASSERT_EQ(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 50 << 10), cudaSuccess);
  EXPECT_EQ(launch(1, 1, 50 << 10, write_shared, size_t{0}), cudaSuccess);
}

// ---- Memory

TEST_F(Emulator, MemoryEndsAndComesBack) {
  cuda_emulator::reset({.memory_bytes = 1000});
  void *a = nullptr, *b = nullptr;
  ASSERT_EQ(cudaMalloc(&a, 600), cudaSuccess);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 256, 0u);
  EXPECT_EQ(cudaMalloc(&b, 600), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, 400u);
  EXPECT_EQ(total, 1000u);
  ASSERT_EQ(cudaFree(a), cudaSuccess);
  EXPECT_EQ(cudaFree(a), cudaErrorInvalidValue);
  ASSERT_EQ(cudaMalloc(&b, 600), cudaSuccess);
  ASSERT_EQ(cudaFree(b), cudaSuccess);
}

TEST_F(Emulator, FreshMemoryHoldsNaN) {
  const Numbers<float> out(5);
  for (const float v : out.values()) EXPECT_NE(v, v);
}

TEST_F(Emulator, CopiesKnowWhereMemoryIs) {
  const Numbers<int> device(std::vector<int>{1, 2});
  int host[2] = {};
  EXPECT_EQ(cudaMemcpyAsync(host, device.data(), 8, cudaMemcpyHostToDevice, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host, device.data(), 12, cudaMemcpyDeviceToHost, nullptr), cudaErrorInvalidValue)
      << "too long";
  EXPECT_EQ(cudaMemcpyAsync(host, device.data() + 1, 4, cudaMemcpyDeviceToHost, nullptr), cudaSuccess);
  EXPECT_EQ(host[0], 2);
}

// ---- Products

TEST_F(Emulator, ProductsStandByColumns) {
  // A (2, 3) and B (3, 2) by columns, A·B = (22 28; 49 64).
  const Numbers<float> a(std::vector<float>{1, 4, 2, 5, 3, 6}), b(std::vector<float>{1, 3, 5, 2, 4, 6}), c(4);
  cublasHandle_t handle = nullptr;
  ASSERT_EQ(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
  const float one = 1, zero = 0;
  const auto multiply = [&](cublasOperation_t ta, const Numbers<float>& left, int lda, cudaDataType_t type) {
    return cublasGemmStridedBatchedEx(handle, ta, CUBLAS_OP_N, 2, 2, 3, &one, left.data(), type, lda, 0,
                                      b.data(), CUDA_R_32F, 3, 0, &zero, c.data(), CUDA_R_32F, 2, 0, 1,
                                      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  };
  ASSERT_EQ(multiply(CUBLAS_OP_N, a, 2, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(c.values(), (std::vector<float>{22, 49, 28, 64}));
  const Numbers<float> transposed(std::vector<float>{1, 2, 3, 4, 5, 6});
  ASSERT_EQ(multiply(CUBLAS_OP_T, transposed, 3, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(c.values(), (std::vector<float>{22, 49, 28, 64}));
  EXPECT_EQ(multiply(CUBLAS_OP_N, a, 1, CUDA_R_32F), CUBLAS_STATUS_INVALID_VALUE)
      << "columns of 2 rows, 1 apart";
  EXPECT_EQ(multiply(CUBLAS_OP_N, a, 2, CUDA_R_16F), CUBLAS_STATUS_NOT_SUPPORTED) << "factors of two types";
}

}  // namespace
}  // namespace tapehead
