// Rows of tables: gathered, scattered, added to.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "tapehead/backends/cpu/convert.h"
#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/core/parallel.h"

namespace tapehead {

void CpuBackend::gather_rows(const Tensor& table, const Tensor& ids, Tensor& y) {
  if (y.numel() == 0) return;
  const int64_t features = y.size(1), stride = table.strides()[0], bytes = features * size_of(y.dtype());
  const auto* from = static_cast<const std::byte*>(table.raw_data());
  auto* to = static_cast<std::byte*>(y.mutable_raw_data());
  visit_index(ids.dtype(), "gather_rows", [&]<class I>(std::type_identity<I>) {
    const I* id = ids.data<I>();
    parallel_for(ids.numel(), std::max<int64_t>(1, kGrain / features), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        if (id[r] < 0) {
          std::memset(to + r * bytes, 0, static_cast<size_t>(bytes));
        } else {
          std::memcpy(to + r * bytes, from + id[r] * stride * size_of(y.dtype()), static_cast<size_t>(bytes));
        }
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
        if (id[r] >= 0)
          convert_run(x.dtype(), in + r * from_bytes, table.dtype(), out + id[r] * to_bytes, features);
      }
    });
  });
}

void CpuBackend::scatter_add_rows(const Tensor& x, const Tensor& ids, const Tensor& scale, Tensor& table) {
  if (x.numel() == 0) return;
  // Rows that meet are added in the order of r and rounded once. Threads share the features, not the rows:
  // frequent ids burden all alike.
  constexpr int64_t kFeatures = 16;  // a cache line of f32
  const int64_t rows = x.size(0), features = x.size(1), blocks = (features + kFeatures - 1) / kFeatures;
  const std::vector<int64_t> id = ids.to(DType::i64).to_vector<int64_t>();
  std::vector<int64_t> order(id.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return id[static_cast<size_t>(a)] < id[static_cast<size_t>(b)];
  });
  const double* factor = scale.defined() ? scale.data<double>() : nullptr;
  const auto at = [](auto& list, int64_t i) { return list[static_cast<size_t>(i)]; };
  visit_floating(table.dtype(), "scatter_add_rows", [&]<class T>(std::type_identity<T>) {
    visit_floating(x.dtype(), "scatter_add_rows", [&]<class X>(std::type_identity<X>) {
      const X* in = x.data<X>();
      T* out = table.mutable_data<T>();
      const auto add = [&](int64_t begin, int64_t end) {
        for (int64_t block = begin; block < end; ++block) {
          const int64_t first = block * kFeatures, n = std::min(kFeatures, features - first);
          for (int64_t i = 0; i < rows;) {
            const int64_t same = at(id, at(order, i));
            T* to = out + same * features + first;
            double sums[kFeatures];
            for (int64_t f = 0; f < n; ++f) sums[f] = static_cast<double>(static_cast<wide_t<T>>(to[f]));
            for (; i < rows && at(id, at(order, i)) == same; ++i) {
              const int64_t r = at(order, i);
              const double by = factor ? factor[r] : 1;
              const X* row = in + r * features + first;
              for (int64_t f = 0; f < n; ++f)
                sums[f] += by * static_cast<double>(static_cast<wide_t<X>>(row[f]));
            }
            for (int64_t f = 0; f < n; ++f) to[f] = static_cast<T>(static_cast<wide_t<T>>(sums[f]));
          }
        }
      };
      parallel_for(blocks, std::max<int64_t>(1, kGrain / (rows * kFeatures)), add);
    });
  });
}

void CpuBackend::gather_add_rows(const Tensor& table, const Tensor& ids, const Tensor& scale, Tensor& y) {
  if (y.numel() == 0) return;
  const int64_t features = y.size(1), down = table.strides()[0], along = table.strides()[1];
  const double* factor = scale.data<double>();
  visit_floating(table.dtype(), "gather_add_rows", [&]<class T>(std::type_identity<T>) {
    visit_floating(y.dtype(), "gather_add_rows", [&]<class Y>(std::type_identity<Y>) {
      visit_index(ids.dtype(), "gather_add_rows", [&]<class I>(std::type_identity<I>) {
        const T* from = table.data<T>();
        const I* id = ids.data<I>();
        Y* to = y.mutable_data<Y>();
        parallel_for(y.size(0), std::max<int64_t>(1, kGrain / features), [&](int64_t begin, int64_t end) {
          for (int64_t r = begin; r < end; ++r) {
            const T* row = from + id[r] * down;
            Y* sum = to + r * features;
            for (int64_t f = 0; f < features; ++f) {
              const double term = factor[r] * static_cast<double>(static_cast<wide_t<T>>(row[f * along]));
              sum[f] = static_cast<Y>(
                  static_cast<wide_t<Y>>(static_cast<double>(static_cast<wide_t<Y>>(sum[f])) + term));
            }
          }
        });
      });
    });
  });
}

}  // namespace tapehead
