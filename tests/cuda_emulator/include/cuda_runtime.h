// Stands in for CUDA's header of this name: what backends/cuda uses of it, run on the host (README.md).
#pragma once

#include <math.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <source_location>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
// Of the thread that launches: it runs all of a block's threads.
#define __shared__ thread_local

// ---- Types

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3() = default;
  constexpr dim3(unsigned nx, unsigned ny = 1, unsigned nz = 1) : x(nx), y(ny), z(nz) {}
};

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchFailure = 719,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
};

enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };

enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2,
};

using cudaStream_t = struct CUstream_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;
constexpr unsigned cudaStreamNonBlocking = 1;

struct cudaLaunchAttribute;

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

// ---- The host's calls

const char* cudaGetErrorName(cudaError_t status);
const char* cudaGetErrorString(cudaError_t status);
cudaError_t cudaGetLastError();

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);

cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMallocHost(void** memory, size_t bytes);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* memory, int byte, size_t bytes, cudaStream_t stream);

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

// ---- What a kernel sees. The emulator defines it (block.h).

namespace cuda_emulator {

enum class WarpOp : uint8_t { sync, ballot, shuffle, shuffle_up, shuffle_down, shuffle_xor };

void barrier(std::source_location where);
/// Meets the lanes of `mask` and gives this one what `op` gives it of all values.
uint64_t meet_warp(WarpOp op, unsigned mask, uint64_t value, int argument, int width,
                   std::source_location where);
[[noreturn]] void trap(const char* reason);

/// A kernel with its arguments.
struct Launch {
  const void* kernel;
  void (*call)(const void* body);                         // of one thread
  std::shared_ptr<const void> (*copy)(const void* body);  // of the arguments, for a graph
  const void* body;
};

/// Runs it once for each thread of the grid.
cudaError_t launch(const cudaLaunchConfig_t& config, const Launch& launch);

template <class T>
uint64_t to_word(T value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  return word;
}

template <class T>
T shuffle(WarpOp op, unsigned mask, T value, int argument, int width, std::source_location where) {
  const uint64_t word = meet_warp(op, mask, to_word(value), argument, width, where);
  std::memcpy(&value, &word, sizeof(T));
  return value;
}

}  // namespace cuda_emulator

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  // By value, as a launch copies them.
  const auto body = [kernel, ... copies = static_cast<Parameters>(arguments)] { kernel(copies...); };
  using Body = decltype(body);
  return cuda_emulator::launch(*config, {.kernel = reinterpret_cast<const void*>(kernel),
                                         .call = [](const void* b) { (*static_cast<const Body*>(b))(); },
                                         .copy = [](const void* b) -> std::shared_ptr<const void> {
                                           return std::make_shared<Body>(*static_cast<const Body*>(b));
                                         },
                                         .body = &body});
}

inline void __syncthreads(std::source_location where = std::source_location::current()) {
  cuda_emulator::barrier(where);
}
inline int __syncthreads_count(int predicate, std::source_location where = std::source_location::current()) {
  __shared__ int votes;
  votes = 0;
  __syncthreads(where);
  votes += predicate != 0;
  __syncthreads(where);
  const int result = votes;
  __syncthreads(where);
  return result;
}
inline int __syncthreads_or(int predicate, std::source_location where = std::source_location::current()) {
  return __syncthreads_count(predicate, where) > 0;
}
inline int __syncthreads_and(int predicate, std::source_location where = std::source_location::current()) {
  return __syncthreads_count(!predicate, where) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffff,
                       std::source_location where = std::source_location::current()) {
  cuda_emulator::meet_warp(cuda_emulator::WarpOp::sync, mask, 0, 0, warpSize, where);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = warpSize,
              std::source_location where = std::source_location::current()) {
  return cuda_emulator::shuffle(cuda_emulator::WarpOp::shuffle, mask, value, lane, width, where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                 std::source_location where = std::source_location::current()) {
  return cuda_emulator::shuffle(cuda_emulator::WarpOp::shuffle_up, mask, value, static_cast<int>(delta),
                                width, where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                   std::source_location where = std::source_location::current()) {
  return cuda_emulator::shuffle(cuda_emulator::WarpOp::shuffle_down, mask, value, static_cast<int>(delta),
                                width, where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize,
                  std::source_location where = std::source_location::current()) {
  return cuda_emulator::shuffle(cuda_emulator::WarpOp::shuffle_xor, mask, value, lane_mask, width, where);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              std::source_location where = std::source_location::current()) {
  return static_cast<unsigned>(
      cuda_emulator::meet_warp(cuda_emulator::WarpOp::ballot, mask, predicate != 0, 0, warpSize, where));
}
inline int __any_sync(unsigned mask, int predicate,
                      std::source_location where = std::source_location::current()) {
  return __ballot_sync(mask, predicate, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate,
                      std::source_location where = std::source_location::current()) {
  return __ballot_sync(mask, predicate, where) == mask;
}
inline void __threadfence() {}
inline void __threadfence_system() {}
[[noreturn]] inline void __trap() { cuda_emulator::trap("__trap"); }

// Threads of the grid run one at a time, so these need no more.
template <class T>
T atomicAdd(T* to, std::type_identity_t<T> value) {
  const T before = *to;
  *to = before + value;
  return before;
}
template <class T>
T atomicMin(T* to, std::type_identity_t<T> value) {
  const T before = *to;
  if (value < before) *to = value;
  return before;
}
template <class T>
T atomicMax(T* to, std::type_identity_t<T> value) {
  const T before = *to;
  if (before < value) *to = value;
  return before;
}
template <class T>
T atomicOr(T* to, std::type_identity_t<T> value) {
  const T before = *to;
  *to = before | value;
  return before;
}
template <class T>
T atomicExch(T* to, std::type_identity_t<T> value) {
  const T before = *to;
  *to = value;
  return before;
}
template <class T>
T atomicCAS(T* to, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  const T before = *to;
  if (before == expected) *to = value;
  return before;
}

// ---- Functions of numbers that C++ has under other names

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
// In wider numbers: rounding the argument would cost the tail its digits.
inline float normcdff(float x) { return static_cast<float>(0.5 * std::erfc(-x * 0.70710678118654752440)); }
inline double normcdf(double x) {
  return static_cast<double>(0.5l * std::erfc(-x * 0.70710678118654752440l));
}
template <class T>
constexpr T min(T a, std::type_identity_t<T> b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, std::type_identity_t<T> b) {
  return a < b ? b : a;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
template <class T>
T __ldg(const T* p) {
  return *p;
}
inline float __uint_as_float(unsigned x) {
  float f;
  std::memcpy(&f, &x, sizeof f);
  return f;
}
inline unsigned __float_as_uint(float x) {
  unsigned u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}
