// Products with a sparse matrix, and with its transpose:
// sums of scaled rows, each thread with an octet of them.
//
// The transpose first learns where each column's entries are: they are counted, and
// their numbers listed column by column, in the order that threads come in. A block
// that has a column then spreads it over a window of rows in shared memory and walks
// that from its first row to its last, so that sums have one order all the same.
#include "tapehead/backends/cuda/cuda_backend.h"
#include "tapehead/backends/cuda/octet.h"
#include "tapehead/backends/cuda/scratch.h"

namespace tapehead {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kScanThreads = 1024;
constexpr int64_t kWindow = 2048;  // rows that a column is spread over at once

/// A SparseRows of values in W, as a kernel's parameter.
template <class W>
struct Entries {
  int64_t R, S;
  const int64_t* count;
  const int32_t* index;
  const W* value;

  explicit Entries(const SparseRows& s)
      : R(s.index.size(0)),
        S(s.index.size(1)),
        count(s.count.data<int64_t>()),
        index(s.index.data<int32_t>()),
        value(s.value.data<W>()) {}
};

/// sums += factor · an octet of a row of T.
template <class T, class W>
__device__ void add_octet(const T* row, int64_t begin, int64_t F, W factor, W (&sums)[kOctet]) {
  W x[kOctet];
  load_within(row, begin, F, W{0}, x);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) sums[i] += factor * x[i];
}

// A block has `blockDim.x` octets of one row of y.
template <class W, class T>
__global__ void __launch_bounds__(kThreads, 2)
    sparse_matmul_kernel(Entries<W> s, int64_t F, int64_t parts, const T* table, int64_t stride,
                         MutableRows y) {
  for_each_row(s.R * parts, [&](int64_t unit) {
    const int64_t r = unit / parts, begin = (unit % parts * blockDim.x + threadIdx.x) * kOctet;
    if (begin >= F) return;
    const int32_t* index = s.index + r * s.S;
    const W* value = s.value + r * s.S;
    W sums[kOctet] = {};
#pragma unroll 4
    for (int64_t k = 0; k < s.count[r]; ++k) add_octet(table + index[k] * stride, begin, F, value[k], sums);
    y.visit(r, [&]<class Y>(const Y* row) { store_within(const_cast<Y*>(row), begin, F, sums); });
  });
}

// ends[v] becomes the number of entries in column v.
template <class W>
__global__ void count_columns_kernel(Entries<W> s, unsigned long long* ends) {
  for_each_index(s.R * s.S, [&](int64_t entry) {
    if (entry % s.S < s.count[entry / s.S]) atomicAdd(ends + s.index[entry], 1ull);
  });
}

// In place, by one block: counts become the sums of those before. Thread t has a run of neighbours.
__global__ void __launch_bounds__(kScanThreads) scan_kernel(int64_t n, unsigned long long* counts) {
  __shared__ unsigned long long of_thread[kScanThreads];
  const int64_t share = (n + kScanThreads - 1) / kScanThreads, begin = threadIdx.x * share,
                end = begin + share < n ? begin + share : n;
  unsigned long long sum = 0;
  for (int64_t v = begin; v < end; ++v) sum += counts[v];
  of_thread[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned distance = 1; distance < kScanThreads; distance *= 2) {
    const unsigned long long before = threadIdx.x >= distance ? of_thread[threadIdx.x - distance] : 0;
    __syncthreads();
    of_thread[threadIdx.x] += before;
    __syncthreads();
  }
  unsigned long long before = of_thread[threadIdx.x] - sum;
  for (int64_t v = begin; v < end; ++v) {
    const unsigned long long count = counts[v];
    counts[v] = before;
    before += count;
  }
}

// Lists the entries by column, and moves ends[v] from column v's first to behind its last.
template <class W>
__global__ void list_columns_kernel(Entries<W> s, unsigned long long* ends, int64_t* list) {
  for_each_index(s.R * s.S, [&](int64_t entry) {
    if (entry % s.S < s.count[entry / s.S]) list[atomicAdd(ends + s.index[entry], 1ull)] = entry;
  });
}

// A block has `blockDim.x` octets of one row of the table. Sums run in A. x null: all 1.
template <class W, class A, class T>
__global__ void __launch_bounds__(kThreads, 2)
    sparse_transposed_kernel(Entries<W> s, const unsigned long long* ends, const int64_t* list, const T* x,
                             int64_t stride, const int64_t* row, bool add, int64_t V, int64_t F,
                             int64_t parts, MutableRows table) {
  __shared__ W value_of_row[kWindow];
  __shared__ unsigned present[kWindow / kWarp];
  for_each_row(V * parts, [&](int64_t unit) {
    const int64_t v = unit / parts, begin = (unit % parts * blockDim.x + threadIdx.x) * kOctet;
    const int64_t first = v == 0 ? 0 : static_cast<int64_t>(ends[v - 1]),
                  last = static_cast<int64_t>(ends[v]);
    if (first == last && add) return;
    A sums[kOctet] = {};
    if (add && begin < F) table.visit(v, [&](const auto* to) { load_within(to, begin, F, A{0}, sums); });
    for (int64_t top = 0; top < s.R && first < last; top += kWindow) {
      const int64_t rows = s.R - top < kWindow ? s.R - top : kWindow;
      const int words = static_cast<int>((rows + kWarp - 1) / kWarp);
      for (int w = static_cast<int>(threadIdx.x); w < words; w += static_cast<int>(blockDim.x))
        present[w] = 0;
      __syncthreads();
      for (int64_t k = first + threadIdx.x; k < last; k += blockDim.x) {
        const int64_t entry = list[k], r = entry / s.S - top;
        if (r < 0 || r >= rows) continue;
        value_of_row[r] = s.value[entry];
        atomicOr(present + r / kWarp, 1u << (r % kWarp));
      }
      __syncthreads();
      for (int w = 0; w < words && begin < F; ++w) {
        for (unsigned bits = present[w]; bits != 0; bits &= bits - 1) {
          const int r = w * kWarp + __ffs(static_cast<int>(bits)) - 1;
          const A factor = static_cast<A>(value_of_row[r]);
          if (x) {
            add_octet(x + (row ? row[top + r] : top + r) * stride, begin, F, factor, sums);
          } else {
#pragma unroll
            for (int i = 0; i < kOctet; ++i) sums[i] += factor;
          }
        }
      }
      __syncthreads();
    }
    if (begin < F)
      table.visit(v, [&]<class Y>(const Y* to) { store_within(const_cast<Y*>(to), begin, F, sums); });
  });
}

// How a row of F elements is shared by blocks: threads of each, and how many it takes.
struct Parts {
  unsigned threads;
  int64_t count;

  explicit Parts(int64_t F)
      : threads(row_threads(F, kThreads)), count((F + threads * kOctet - 1) / (threads * kOctet)) {}
};

template <class W>
void sparse_matmul_of(Stream& stream, const SparseRows& s, const Tensor& table, Tensor& y) {
  const int64_t F = y.size(1);
  const Parts parts(F);
  visit_floating(table.dtype(), "sparse_matmul", [&]<class T>(std::type_identity<T>) {
    stream.launch("sparse_matmul", grid_of_rows(y.size(0) * parts.count, parts.threads),
                  sparse_matmul_kernel<W, T>, Entries<W>(s), F, parts.count, table.data<T>(),
                  table.strides()[0], MutableRows(y));
  });
}

template <class W>
void sparse_transposed_matmul_of(CudaBackend& backend, const SparseRows& s, const Tensor& x,
                                 const Tensor& row, double beta, Tensor& table) {
  constexpr const char* kName = "sparse_transposed_matmul";
  Stream& stream = backend.stream();
  const Entries<W> entries(s);
  const int64_t V = table.size(0), F = table.size(1), most = entries.R * entries.S;
  const Scratch ends(backend, V * 8), list(backend, most * 8);
  stream.check("cudaMemsetAsync",
               cudaMemsetAsync(ends.as<void>(), 0, static_cast<size_t>(V) * 8, stream.get()));
  auto* counts = ends.as<unsigned long long>();
  stream.launch(kName, grid_for(stream, most), count_columns_kernel<W>, entries, counts);
  stream.launch(kName, Grid{.blocks = dim3(1), .threads = kScanThreads}, scan_kernel, V, counts);
  stream.launch(kName, grid_for(stream, most), list_columns_kernel<W>, entries, counts, list.as<int64_t>());

  const Parts parts(F);
  const Grid grid = grid_of_rows(V * parts.count, parts.threads);
  const int64_t* id = row.defined() ? row.data<int64_t>() : nullptr;
  if (!x.defined()) {
    stream.launch(kName, grid, sparse_transposed_kernel<W, double, W>, entries, counts, list.as<int64_t>(),
                  nullptr, 0, id, beta != 0, V, F, parts.count, MutableRows(table));
    return;
  }
  visit_floating(x.dtype(), kName, [&]<class T>(std::type_identity<T>) {
    stream.launch(kName, grid, sparse_transposed_kernel<W, W, T>, entries, counts, list.as<int64_t>(),
                  x.data<T>(), x.strides()[0], id, beta != 0, V, F, parts.count, MutableRows(table));
  });
}

}  // namespace

void CudaBackend::sparse_matmul(const SparseRows& s, const Tensor& table, Tensor& y) {
  if (y.numel() == 0) return;
  if (s.value.dtype() == DType::f64) {
    sparse_matmul_of<double>(stream_, s, table, y);
  } else {
    sparse_matmul_of<float>(stream_, s, table, y);
  }
}

void CudaBackend::sparse_transposed_matmul(const SparseRows& s, const Tensor& x, const Tensor& row,
                                           double beta, Tensor& table) {
  if (table.numel() == 0) return;
  if (s.value.dtype() == DType::f64) {
    sparse_transposed_matmul_of<double>(*this, s, x, row, beta, table);
  } else {
    sparse_transposed_matmul_of<float>(*this, s, x, row, beta, table);
  }
}

}  // namespace tapehead
