// Rows of tables: ids checked, rows gathered, rows added to.
#include <cstring>

#include "tapehead/backends/cpu/convert.h"
#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/backends/cpu/parallel.h"

namespace tapehead {

int64_t CpuBackend::first_out_of_range(const Tensor& ids, int64_t n, int64_t ignored) {
  return visit_index(ids.dtype(), "first_out_of_range", [&]<class I>(std::type_identity<I>) -> int64_t {
    const I* id = ids.data<I>();
    for (int64_t r = 0; r < ids.numel(); ++r) {
      if ((id[r] < 0 || id[r] >= n) && id[r] != ignored) return r;
    }
    return -1;
  });
}

void CpuBackend::gather_rows(const Tensor& table, const Tensor& ids, Tensor& y) {
  if (y.numel() == 0) return;
  const int64_t features = y.size(1), stride = table.strides()[0], bytes = features * size_of(y.dtype());
  const auto* from = static_cast<const std::byte*>(table.raw_data());
  auto* to = static_cast<std::byte*>(y.mutable_raw_data());
  visit_index(ids.dtype(), "gather_rows", [&]<class I>(std::type_identity<I>) {
    const I* id = ids.data<I>();
    parallel_for(ids.numel(), std::max<int64_t>(1, kGrain / features), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        std::memcpy(to + r * bytes, from + id[r] * stride * size_of(y.dtype()), static_cast<size_t>(bytes));
      }
    });
  });
}

void CpuBackend::scatter_rows(const Tensor& x, const Tensor& ids, Tensor& table) {
  if (x.numel() == 0) return;
  const int64_t features = x.size(1), from_bytes = features * size_of(x.dtype()),
                to_bytes = features * size_of(table.dtype());
  const char* in = static_cast<const char*>(x.raw_data());
  char* out = static_cast<char*>(table.mutable_raw_data());
  visit_index(ids.dtype(), "scatter_rows", [&]<class I>(std::type_identity<I>) {
    const I* id = ids.data<I>();
    parallel_for(x.size(0), std::max<int64_t>(1, kGrain / features), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        convert_run(x.dtype(), in + r * from_bytes, table.dtype(), out + id[r] * to_bytes, features);
      }
    });
  });
}

void CpuBackend::scatter_add_rows(const Tensor& x, const Tensor& ids, Tensor& table) {
  if (x.numel() == 0) return;
  if (is_half(table.dtype())) {  // rounded once, however many rows meet
    Tensor wide = table.to(DType::f32);
    scatter_add_rows(x.to(DType::f32), ids, wide);
    return copy(wide, table);
  }
  // Threads share the features, not the rows: each adds in the order of r, and frequent ids burden all alike.
  constexpr int64_t kFeatures = 16;  // a cache line of f32
  const int64_t rows = x.size(0), features = x.size(1);
  visit_floating(table.dtype(), "scatter_add_rows", [&]<class T>(std::type_identity<T>) {
    visit_index(ids.dtype(), "scatter_add_rows", [&]<class I>(std::type_identity<I>) {
      if constexpr (std::is_same_v<T, wide_t<T>>) {
        const T* in = x.data<T>();
        const I* id = ids.data<I>();
        T* out = table.mutable_data<T>();
        const int64_t blocks = (features + kFeatures - 1) / kFeatures;
        parallel_for(blocks, std::max<int64_t>(1, kGrain / (rows * kFeatures)),
                     [&](int64_t begin, int64_t end) {
                       const int64_t first = begin * kFeatures, last = std::min(end * kFeatures, features);
                       for (int64_t r = 0; r < rows; ++r) {
                         T* sum = out + id[r] * features;
                         const T* row = in + r * features;
                         for (int64_t f = first; f < last; ++f) sum[f] += row[f];
                       }
                     });
      }
    });
  });
}

}  // namespace tapehead
