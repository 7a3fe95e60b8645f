// Indices looked at before kernels use them, by one block, so that the first fault is the one that is told.
#include "tapehead/backends/cuda/cuda_backend.h"
#include "tapehead/backends/cuda/launch.h"

namespace tapehead {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

struct Smaller {
  __device__ int64_t operator()(int64_t a, int64_t b) const { return b < a ? b : a; }
};

/// What is looked for, and where to tell of what is outside: a kernel's parameter.
struct Check {
  IndexRange range;
  int64_t number;
  IndexFaultRecord* record;

  Check(const IndexRange& taken, IndexFaults& faults, IndexFault fault)
      : range(taken), number(faults.add(std::move(fault))), record(faults.record()) {}

  /// The block's threads tell the first position that each found, kNone for none.
  template <class I>
  __device__ void tell(int64_t found, const I* ids) const {
    const int64_t first = block_reduce(found, kNone, Smaller());
    if (threadIdx.x != 0 || first == kNone || record->check != 0) return;
    record->position = first;
    record->index = ids[first];
    __threadfence_system();
    record->check = number;
  }
};

// One block, of whole warps.
Grid grid_of_block(int64_t n) {
  const int64_t warps = std::clamp<int64_t>((n + kWarp - 1) / kWarp, 1, 1024 / kWarp);
  return {.blocks = dim3(1), .threads = static_cast<unsigned>(warps * kWarp)};
}

template <class I>
__global__ void __launch_bounds__(1024) checked_indices_kernel(Check check, const I* ids, int64_t n, I* y) {
  int64_t found = kNone;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const bool holds = check.range.holds(i, ids[i]);
    y[i] = holds ? ids[i] : I{0};
    if (!holds && found == kNone) found = i;
  }
  check.tell(found, ids);
}

// target null: class probabilities; ids null: rows stay where they are. The block goes through blockDim.x
// rows at a time, and moves those that count towards the front, where what it overwrites was read.
template <class I, class T>
__global__ void __launch_bounds__(1024)
    cross_entropy_targets_kernel(Check check, const I* target, const T* class_weight, int64_t n,
                                 RowDivisor divisor, int64_t* index, double* weight, int64_t* ids,
                                 double* divisors) {
  int64_t found = kNone, live = 0;
  double total = 0, z_total = 0;
  for (int64_t first = 0; first < n; first += blockDim.x) {
    const int64_t r = first + threadIdx.x;
    int64_t t = 0;
    double w = r < n ? weight[r] : 0, of_class = 1;
    if (target && r < n) {
      t = target[r];
      if (!check.range.holds(r, t)) {
        if (found == kNone) found = r;
        t = 0;
      } else if (check.range.ignores(t)) {
        t = 0;
        w = 0;
      }
      if (class_weight) of_class = static_cast<double>(widen(class_weight[t]));
    }
    if (w != 0) {
      total += w * of_class;
      z_total += w;
    }
    int count;
    const int before = block_prefix(w != 0, count);
    const int64_t to = ids ? live + before : r;
    live += count;
    if (ids ? w == 0 : r >= n) continue;
    if (ids) ids[to] = r;
    if (target) index[to] = t;
    weight[to] = w;
  }
  for (int64_t r = live + threadIdx.x; ids && r < n; r += blockDim.x) {
    ids[r] = -1;
    if (target) index[r] = 0;
    weight[r] = 0;
  }
  total = block_sum(total);
  z_total = block_sum(z_total);
  if (threadIdx.x == 0) {
    divisors[0] = divisor.of(total, live);
    divisors[1] = divisor.of(z_total, live);
    divisors[2] = static_cast<double>(live);
  }
  if (target) check.tell(found, target);
}

}  // namespace

Tensor CudaBackend::checked_indices(const Tensor& ids, const IndexRange& range, IndexFault fault) {
  if (ids.numel() == 0) return ids;
  Tensor y(ids.shape(), ids.dtype(), ids.device());
  const Check check(range, faults_, std::move(fault));
  visit_index(ids.dtype(), "checked_indices", [&]<class I>(std::type_identity<I>) {
    stream_.launch("checked_indices", grid_of_block(ids.numel()), checked_indices_kernel<I>, check,
                   ids.data<I>(), ids.numel(), y.mutable_data<I>());
  });
  return y;
}

void CudaBackend::cross_entropy_targets(const CrossEntropyTargets& targets, IndexFault fault) {
  const int64_t n = targets.weight.numel();
  const Check check(targets.range, faults_, std::move(fault));
  const auto integers = [](Tensor x) { return x.defined() ? x.mutable_data<int64_t>() : nullptr; };
  const auto run = [&]<class I, class T>(const I* target, const T* class_weight) {
    stream_.launch("cross_entropy_targets", grid_of_block(n), cross_entropy_targets_kernel<I, T>, check,
                   target, class_weight, n, targets.divisor, integers(targets.index),
                   Tensor(targets.weight).mutable_data<double>(), integers(targets.ids),
                   Tensor(targets.divisors).mutable_data<double>());
  };
  if (!targets.target.defined())
    return run(static_cast<const int64_t*>(nullptr), static_cast<const float*>(nullptr));
  visit_index(targets.target.dtype(), "cross_entropy_targets", [&]<class I>(std::type_identity<I>) {
    const I* target = targets.target.data<I>();
    const Tensor& w = targets.class_weight;
    if (!w.defined()) return run(target, static_cast<const float*>(nullptr));
    visit_floating(w.dtype(), "cross_entropy_targets",
                   [&]<class T>(std::type_identity<T>) { run(target, w.data<T>()); });
  });
}

}  // namespace tapehead
