// Rows of tables: ids checked, rows gathered, rows added to.
#include <cstring>

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

void CpuBackend::scatter_add_rows(const Tensor& x, const Tensor& ids, Tensor& table) {
  if (x.numel() == 0) return;
  const int64_t rows = x.size(0), features = x.size(1);
  visit_floating(x.dtype(), "scatter_add_rows", [&]<class T>(std::type_identity<T>) {
    visit_index(ids.dtype(), "scatter_add_rows", [&]<class I>(std::type_identity<I>) {
      const T* in = x.data<T>();
      const I* id = ids.data<I>();
      T* out = table.mutable_data<T>();
      // Each thread owns a range of table rows and reads all ids: whatever the number of threads, a table row sees its
      // additions in the order of r.
      const int64_t height = table.size(0);
      parallel_for(height, std::max<int64_t>(1, kGrain / features), [&](int64_t begin, int64_t end) {
        for (int64_t r = 0; r < rows; ++r) {
          if (id[r] < begin || id[r] >= end) continue;
          T* o = out + id[r] * features;
          const T* v = in + r * features;
          for (int64_t f = 0; f < features; ++f) {
            o[f] = static_cast<T>(static_cast<wide_t<T>>(o[f]) + static_cast<wide_t<T>>(v[f]));
          }
        }
      });
    });
  });
}

}  // namespace tapehead
