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

// ---- Rows added. They are sorted by their id, and those of one id by their position: one block adds what
// belongs to an id.

namespace {

struct Entry {
  int64_t id, row;

  __device__ bool operator<(const Entry& other) const {
    return id != other.id ? id < other.id : row < other.row;
  }
};

}  // namespace

// Sorts runs of blockDim.x entries: each comes behind as many as are smaller.
template <class I>
static __global__ void sort_runs_kernel(const I* ids, int64_t rows, Entry* sorted) {
  Entry* run = dynamic_shared<Entry>();
  const int64_t runs = (rows + blockDim.x - 1) / blockDim.x;
  for_each_row(runs, [&](int64_t index) {
    const int64_t begin = index * blockDim.x, row = begin + threadIdx.x;
    const auto size = static_cast<int>(min(rows - begin, static_cast<int64_t>(blockDim.x)));
    if (row < rows) run[threadIdx.x] = {static_cast<int64_t>(ids[row]), row};
    __syncthreads();
    if (row < rows) {
      int smaller = 0;
      for (int i = 0; i < size; ++i) smaller += run[i] < run[threadIdx.x];
      sorted[begin + smaller] = run[threadIdx.x];
    }
    __syncthreads();
  });
}

// Merges each pair of runs of `length` entries: each comes behind those before it in its run, and those of
// the other run that are smaller.
static __global__ void merge_runs_kernel(const Entry* from, int64_t rows, int64_t length, Entry* to) {
  for_each_index(rows, [&](int64_t i) {
    const Entry entry = from[i];
    const int64_t run = i / length, other = min((run ^ 1) * length, rows), end = min(other + length, rows);
    int64_t low = other, high = end;  // the other's first entry that is not smaller is in [low, high]
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (from[middle] < entry) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    to[run / 2 * 2 * length + (i - run * length) + (low - other)] = entry;
  });
}

template <class X, class T>
static __global__ void add_rows_kernel(const X* x, const Entry* sorted, const double* scale, int64_t rows,
                                       int64_t features, T* table) {
  for_each_row(rows, [&](int64_t first) {
    const int64_t id = sorted[first].id;
    if (first > 0 && sorted[first - 1].id == id) return;
    T* to = table + id * features;
    for (int64_t f = threadIdx.x; f < features; f += blockDim.x) {
      double sum = static_cast<double>(widen(to[f]));
      for (int64_t i = first; i < rows && sorted[i].id == id; ++i) {
        const int64_t r = sorted[i].row;
        const double by = scale ? scale[r] : 1;
        sum = __dadd_rn(sum, __dmul_rn(by, static_cast<double>(widen(x[r * features + f]))));
      }
      to[f] = narrow<T>(sum);
    }
  });
}

void CudaBackend::scatter_add_rows(const Tensor& x, const Tensor& ids, const Tensor& scale, Tensor& table) {
  if (x.numel() == 0) return;
  const int64_t rows = x.size(0), run = std::min<int64_t>((rows + kWarp - 1) / kWarp * kWarp, 256),
                features = x.size(1), bytes = rows * static_cast<int64_t>(sizeof(Entry));
  const Scratch first(*this, bytes), second(*this, rows > run ? bytes : 0);
  Entry *sorted = first.as<Entry>(), *other = second.as<Entry>();
  visit_index(ids.dtype(), "scatter_add_rows", [&]<class I>(std::type_identity<I>) {
    stream_.launch("scatter_add_rows (sort)",
                   grid_of_rows((rows + run - 1) / run, static_cast<unsigned>(run),
                                static_cast<size_t>(run) * sizeof(Entry)),
                   sort_runs_kernel<I>, ids.data<I>(), rows, sorted);
  });
  for (int64_t length = run; length < rows; length *= 2) {
    stream_.launch("scatter_add_rows (merge)", grid_for(stream_, rows), merge_runs_kernel, sorted, rows,
                   length, other);
    std::swap(sorted, other);
  }
  const double* factor = scale.defined() ? scale.data<double>() : nullptr;
  visit_floating(table.dtype(), "scatter_add_rows", [&]<class T>(std::type_identity<T>) {
    visit_floating(x.dtype(), "scatter_add_rows", [&]<class X>(std::type_identity<X>) {
      stream_.launch("scatter_add_rows", grid_of_rows(rows, kRowThreads), add_rows_kernel<X, T>, x.data<X>(),
                     sorted, factor, rows, features, table.mutable_data<T>());
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
