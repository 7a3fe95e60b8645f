// Rows of tables: gathered, scattered, added to.
#include "tapehead/backends/cuda/convert.h"
#include "tapehead/backends/cuda/cuda_backend.h"
#include "tapehead/backends/cuda/scratch.h"

namespace tapehead {

constexpr int kRowThreads = 128;

// ---- Rows moved: units are whatever divides a row, up to 16 bytes.

template <class Unit, class I>
static __global__ void gather_rows_kernel(const Unit* table, int64_t stride, const I* ids, int64_t rows,
                                          int64_t units, Unit* y) {
  for_each_row(rows, [&](int64_t r) {
    const int64_t id = ids[r];
    const Unit* from = table + id * stride;
    for (int64_t u = threadIdx.x; u < units; u += blockDim.x) y[r * units + u] = id < 0 ? Unit{} : from[u];
  });
}

void CudaBackend::gather_rows(const Tensor& table, const Tensor& ids, Tensor& y) {
  if (y.numel() == 0) return;
  const int64_t element = size_of(y.dtype()), bytes = y.size(1) * element,
                stride = table.strides()[0] * element;
  const void* from = table.raw_data();
  void* to = y.mutable_raw_data();
  visit_index(ids.dtype(), "gather_rows", [&]<class I>(std::type_identity<I>) {
    const auto run = [&]<class Unit>(std::type_identity<Unit>) {
      constexpr int64_t size = sizeof(Unit);
      stream_.launch("gather_rows", grid_of_rows(y.size(0), kRowThreads), gather_rows_kernel<Unit, I>,
                     static_cast<const Unit*>(from), stride / size, ids.data<I>(), y.size(0), bytes / size,
                     static_cast<Unit*>(to));
    };
    const auto divides = [&](int64_t size) {
      return bytes % size == 0 && stride % size == 0 &&
             reinterpret_cast<uintptr_t>(from) % static_cast<size_t>(size) == 0 &&
             reinterpret_cast<uintptr_t>(to) % static_cast<size_t>(size) == 0;
    };
    if (divides(16)) return run(std::type_identity<uint4>());
    if (divides(8)) return run(std::type_identity<uint64_t>());
    if (divides(4)) return run(std::type_identity<uint32_t>());
    run(std::type_identity<uint16_t>());
  });
}

template <class X, class T, class I>
static __global__ void scatter_rows_kernel(const X* x, const I* ids, int64_t rows, int64_t features,
                                           T* table) {
  for_each_row(rows, [&](int64_t r) {
    if (ids[r] < 0) return;
    T* to = table + ids[r] * features;
    for (int64_t f = threadIdx.x; f < features; f += blockDim.x) to[f] = convert<T>(x[r * features + f]);
  });
}

void CudaBackend::scatter_rows(const Tensor& x, const Tensor& ids, Tensor& table) {
  if (x.numel() == 0) return;
  const Tensor id = ids.to(DType::i64);
  visit_dtype(x.dtype(), [&]<class X>(std::type_identity<X>) {
    visit_dtype(table.dtype(), [&]<class T>(std::type_identity<T>) {
      stream_.launch("scatter_rows", grid_of_rows(x.size(0), kRowThreads), scatter_rows_kernel<X, T, int64_t>,
                     x.data<X>(), id.data<int64_t>(), x.size(0), x.size(1), table.mutable_data<T>());
    });
  });
}

// ---- Rows added. Those with the same id are a list, in the order of their positions: one block adds each list.

constexpr int64_t kNone = -1;

// next[r] = the next position with r's id, or kNone; is_first[r]: whether none before has it. A block for each r looks
// through the others until it finds one: R² reads at most, of R ids that stay in the cache, and no sorting.
template <class I>
static __global__ void link_ids_kernel(const I* ids, int64_t rows, int64_t* next, int32_t* is_first) {
  __shared__ unsigned long long nearest;
  const auto search = [&](int64_t r, int64_t begin,
                          int64_t end) {  // the first position in [begin, end) with r's id
    if (threadIdx.x == 0) nearest = ~0ull;
    __syncthreads();
    for (int64_t at = begin; at < end; at += blockDim.x) {
      const int64_t other = at + threadIdx.x;
      if (other < end && ids[other] == ids[r]) atomicMin(&nearest, static_cast<unsigned long long>(other));
      __syncthreads();
      const bool found = nearest != ~0ull;
      __syncthreads();
      if (found) break;
    }
    const unsigned long long result = nearest;
    __syncthreads();
    return result == ~0ull ? kNone : static_cast<int64_t>(result);
  };
  for_each_row(rows, [&](int64_t r) {
    const int64_t after = search(r, r + 1, rows), before = search(r, 0, r);
    if (threadIdx.x == 0) {
      next[r] = after;
      is_first[r] = before == kNone;
    }
  });
}

template <class X, class T, class I>
static __global__ void add_lists_kernel(const X* x, const I* ids, const double* scale, const int64_t* next,
                                        const int32_t* is_first, int64_t rows, int64_t features, T* table) {
  for_each_row(rows, [&](int64_t first) {
    if (!is_first[first]) return;
    T* to = table + ids[first] * features;
    for (int64_t f = threadIdx.x; f < features; f += blockDim.x) {
      double sum = static_cast<double>(widen(to[f]));
      for (int64_t r = first; r != kNone; r = next[r]) {
        const double by = scale ? scale[r] : 1;
        sum = __dadd_rn(sum, __dmul_rn(by, static_cast<double>(widen(x[r * features + f]))));
      }
      to[f] = narrow<T>(sum);
    }
  });
}

void CudaBackend::scatter_add_rows(const Tensor& x, const Tensor& ids, const Tensor& scale, Tensor& table) {
  if (x.numel() == 0) return;
  const int64_t rows = x.size(0), features = x.size(1);
  const Scratch next(*this, rows * static_cast<int64_t>(sizeof(int64_t))),
      is_first(*this, rows * static_cast<int64_t>(sizeof(int32_t)));
  const double* factor = scale.defined() ? scale.data<double>() : nullptr;
  visit_index(ids.dtype(), "scatter_add_rows", [&]<class I>(std::type_identity<I>) {
    const I* id = ids.data<I>();
    stream_.launch("scatter_add_rows (ids)", grid_of_rows(rows, kRowThreads), link_ids_kernel<I>, id, rows,
                   next.as<int64_t>(), is_first.as<int32_t>());
    visit_floating(table.dtype(), "scatter_add_rows", [&]<class T>(std::type_identity<T>) {
      visit_floating(x.dtype(), "scatter_add_rows", [&]<class X>(std::type_identity<X>) {
        stream_.launch("scatter_add_rows", grid_of_rows(rows, kRowThreads), add_lists_kernel<X, T, I>,
                       x.data<X>(), id, factor, next.as<int64_t>(), is_first.as<int32_t>(), rows, features,
                       table.mutable_data<T>());
      });
    });
  });
}

template <class T, class Y, class I>
static __global__ void gather_add_rows_kernel(const T* table, int64_t down, int64_t along, const I* ids,
                                              const double* scale, int64_t rows, int64_t features, Y* y) {
  for_each_row(rows, [&](int64_t r) {
    const T* from = table + ids[r] * down;
    for (int64_t f = threadIdx.x; f < features; f += blockDim.x) {
      Y& sum = y[r * features + f];
      const double term = __dmul_rn(scale[r], static_cast<double>(widen(from[f * along])));
      sum = narrow<Y>(__dadd_rn(static_cast<double>(widen(sum)), term));
    }
  });
}

void CudaBackend::gather_add_rows(const Tensor& table, const Tensor& ids, const Tensor& scale, Tensor& y) {
  if (y.numel() == 0) return;
  visit_floating(table.dtype(), "gather_add_rows", [&]<class T>(std::type_identity<T>) {
    visit_floating(y.dtype(), "gather_add_rows", [&]<class Y>(std::type_identity<Y>) {
      visit_index(ids.dtype(), "gather_add_rows", [&]<class I>(std::type_identity<I>) {
        stream_.launch("gather_add_rows", grid_of_rows(y.size(0), kRowThreads),
                       gather_add_rows_kernel<T, Y, I>, table.data<T>(), table.strides()[0],
                       table.strides()[1], ids.data<I>(), scale.data<double>(), y.size(0), y.size(1),
                       y.mutable_data<Y>());
      });
    });
  });
}

}  // namespace tapehead
