// What kernels share: loops over a grid, elements of any dtype, strided indexing, and reductions in a block.
//
// Kernels are plain: threads of one dimension, whole warps, every thread of a block reaches every barrier.
// The same files are compiled by nvcc, and as C++ against tests/cuda_emulator. What holds in both:
//  - kernels are launched by Stream::launch, never by <<<>>>; parameters are passed by value: pointers,
//    numbers, small structs;
//  - barriers and warp functions are CUDA's own: __syncthreads, __shfl_xor_sync, __ballot_sync and so on,
//    always with the full mask kAllLanes (the emulator offers those that are in use:
//    tests/cuda_emulator/README.md);
//  - static shared memory is __shared__ of float, double or integers (f16 and bf16 have constructors, which
//    shared memory does not run: keep their bits as uint16_t); dynamic shared memory comes from
//    dynamic_shared<T>();
//  - no atomics where the order of additions would show in a result;
//  - what must have the CPU's bits uses __dmul_rn, __dadd_rn, __fmul_rn, ...: nvcc contracts a * b + c
//    otherwise.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "tapehead/backends/cuda/stream.h"
#include "tapehead/core/dtype.h"

namespace tapehead {

constexpr unsigned kAllLanes = 0xffffffff;
constexpr int kWarp = 32;

// ---- Grids

/// Enough blocks for `count` pieces of work at one a thread, or as many as keep the device busy: kernels loop
/// (for_each_index), so that any count is served.
inline Grid grid_for(const Stream& stream, int64_t count, unsigned threads = 256) {
  const int64_t wanted = (count + threads - 1) / threads, busy = int64_t{stream.processors()} * 16;
  return {.blocks = dim3(static_cast<unsigned>(std::min(wanted, busy))), .threads = threads};
}

/// A block for each of `rows`, as many as a grid's first dimension has; kernels loop by blocks beyond
/// (for_each_row).
inline Grid grid_of_rows(int64_t rows, unsigned threads = 256, size_t shared_bytes = 0) {
  return {.blocks = dim3(static_cast<unsigned>(std::min<int64_t>(rows, 0x7fffffff))),
          .threads = threads,
          .shared_bytes = shared_bytes};
}

/// Calls f(i) for this thread's share of [0, n).
template <class F>
__device__ void for_each_index(int64_t n, F f) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) f(i);
}

/// Calls f(row) for this block's share of [0, rows), the same in all its threads, so that f may hold
/// barriers.
template <class F>
__device__ void for_each_row(int64_t rows, F f) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) f(row);
}

// ---- Elements

/// x in the arithmetic's type.
__device__ inline double widen(double x) { return x; }
__device__ inline float widen(float x) { return x; }
__device__ inline float widen(f16 x) { return __half2float(__ushort_as_half(x.bits)); }
__device__ inline float widen(bf16 x) { return __bfloat162float(__ushort_as_bfloat16(x.bits)); }

/// x rounded once, to nearest even, to T: from f32 or f64.
template <class T, class W>
__device__ T narrow(W x) {
  if constexpr (std::is_same_v<T, f16>) {
    T y;
    if constexpr (std::is_same_v<W, double>) {
      y.bits = __half_as_ushort(__double2half(x));
    } else {
      y.bits = __half_as_ushort(__float2half_rn(x));
    }
    return y;
  } else if constexpr (std::is_same_v<T, bf16>) {
    T y;
    if constexpr (std::is_same_v<W, double>) {
      y.bits = __bfloat16_as_ushort(__double2bfloat16(x));
    } else {
      y.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    }
    return y;
  } else {
    return static_cast<T>(x);
  }
}

/// N elements that stand together, loaded and stored in one access of up to 16 bytes. Aligned to its size.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T element[N];
};

/// Elements of T in 16 bytes.
template <class T>
constexpr int kPack = 16 / sizeof(T);

/// Whether a row of packs can begin at p.
inline bool is_pack_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

template <class T>
__device__ Pack<T, kPack<T>> load_pack(const T* p) {
  return *reinterpret_cast<const Pack<T, kPack<T>>*>(p);
}

template <class T>
__device__ void store_pack(T* p, const Pack<T, kPack<T>>& pack) {
  *reinterpret_cast<Pack<T, kPack<T>>*>(p) = pack;
}

// ---- Random numbers

/// Where a kernel's begin: in recorded work, `further` blocks behind where they were recorded
/// (captured_graph.h).
struct RandomStart {
  uint64_t seed, first;
  const uint64_t* further;  // null: 0

  /// The block of that number.
  __device__ uint64_t block() const { return first + (further ? *further : 0); }
};

// ---- Shared memory

extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];

/// The block's dynamic shared memory, of Grid::shared_bytes.
template <class T>
__device__ T* dynamic_shared() {
  return reinterpret_cast<T*>(dynamic_shared_bytes);
}

// ---- Reductions. All threads call them with whole warps; the order of additions is fixed by the number of
// threads.

struct Add {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

/// The larger; NaN wins.
struct Larger {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return (b > a) || (b != b) ? b : a;
  }
};

/// The reduction of x over the warp, in every lane. Join is commutative: both lanes of a pair compute
/// join(own, other's).
template <class T, class Join>
__device__ T warp_reduce(T x, Join join) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    x = join(x, __shfl_xor_sync(kAllLanes, x, distance));
  return x;
}

/// The reduction of x over the block, in every thread. `identity` is neutral to join. Holds two barriers, so
/// that it can be called again at once.
template <class T, class Join>
__device__ T block_reduce(T x, T identity, Join join) {
  __shared__ T parts[kWarp];
  x = warp_reduce(x, join);
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  if (lane == 0) parts[warp] = x;
  __syncthreads();
  x = warp_reduce(lane < warps ? parts[lane] : identity, join);
  __syncthreads();
  return x;
}

template <class T>
__device__ T block_sum(T x) {
  return block_reduce(x, T{0}, Add());
}

template <class T>
__device__ T block_max(T x) {
  return block_reduce(x, -std::numeric_limits<T>::infinity(), Larger());
}

/// The sum of `value` over the block's threads before this one; `total` is that over all. Holds two barriers.
__device__ inline int block_prefix(int value, int& total) {
  __shared__ int of_warp[kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  int through = value;  // the sum over the warp's lanes up to this one
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int other = __shfl_up_sync(kAllLanes, through, static_cast<unsigned>(distance));
    if (lane >= distance) through += other;
  }
  if (lane == kWarp - 1) of_warp[warp] = through;
  __syncthreads();
  int before = through - value;
  total = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) {
    if (w < warp) before += of_warp[w];
    total += of_warp[w];
  }
  __syncthreads();
  return before;
}

}  // namespace tapehead
