// Indices looked at before kernels use them.
#include "tapehead/backends/cpu/cpu_backend.h"

namespace tapehead {

Tensor CpuBackend::checked_indices(const Tensor& ids, const IndexRange& range, IndexFault fault) {
  visit_index(ids.dtype(), "checked_indices", [&]<class I>(std::type_identity<I>) {
    const I* id = ids.data<I>();
    for (int64_t r = 0; r < ids.numel(); ++r) {
      if (!range.holds(r, id[r])) fault(r, id[r]);
    }
  });
  return ids;
}

// Writes index, and 0 to weight where the target is ignored. Calls count(row, weight of its class) for
// each row that counts.
template <class Count>
static void read_targets(const CrossEntropyTargets& targets, const IndexFault& fault, double* weight,
                         Count count) {
  const Tensor& w = targets.class_weight;
  int64_t* index = Tensor(targets.index).mutable_data<int64_t>();
  visit_index(targets.target.dtype(), "cross_entropy_targets", [&]<class I>(std::type_identity<I>) {
    const I* target = targets.target.data<I>();
    const DType dtype = w.defined() ? w.dtype() : DType::f32;
    visit_floating(dtype, "cross_entropy_targets", [&]<class T>(std::type_identity<T>) {
      const T* class_weight = w.defined() ? w.data<T>() : nullptr;
      for (int64_t r = 0; r < targets.target.numel(); ++r) {
        const int64_t t = target[r];
        const bool ignored = targets.range.ignores(t);
        if (!targets.range.holds(r, t)) fault(r, t);
        index[r] = ignored ? 0 : t;
        if (ignored) weight[r] = 0;
        if (weight[r] != 0)
          count(r, class_weight ? static_cast<double>(static_cast<wide_t<T>>(class_weight[t])) : 1);
      }
    });
  });
}

void CpuBackend::cross_entropy_targets(const CrossEntropyTargets& targets, IndexFault fault) {
  const int64_t N = targets.weight.numel();
  double* weight = Tensor(targets.weight).mutable_data<double>();
  int64_t* index = targets.index.defined() ? Tensor(targets.index).mutable_data<int64_t>() : nullptr;
  int64_t* ids = targets.ids.defined() ? Tensor(targets.ids).mutable_data<int64_t>() : nullptr;
  double total = 0, z_total = 0;
  int64_t live = 0;
  const auto count = [&](int64_t r, double of_class) {
    total += weight[r] * of_class;
    z_total += weight[r];
    if (ids) {
      ids[live] = r;
      weight[live] = weight[r];
      if (index) index[live] = index[r];
    }
    ++live;
  };
  if (targets.target.defined()) {
    read_targets(targets, fault, weight, count);
  } else {
    for (int64_t r = 0; r < N; ++r) {
      if (weight[r] != 0) count(r, 1);
    }
  }
  for (int64_t r = live; ids && r < N; ++r) {
    ids[r] = -1;
    weight[r] = 0;
    if (index) index[r] = 0;
  }
  double* divisors = Tensor(targets.divisors).mutable_data<double>();
  divisors[0] = targets.divisor.of(total, live);
  divisors[1] = targets.divisor.of(z_total, live);
  divisors[2] = static_cast<double>(live);
}

}  // namespace tapehead
