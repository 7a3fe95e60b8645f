// Sums and maxima over any dimensions.
//
// In two passes, whose order depends on the layout alone: parts of what stands behind each element of y are
// folded, then the parts are joined. Sums run in f64, as on the CPU.
#include "tapehead/backends/cuda/cuda_backend.h"
#include "tapehead/backends/cuda/scratch.h"
#include "tapehead/backends/cuda/strided.h"
#include "tapehead/core/compensated_sum.h"

namespace tapehead {

namespace {

// ---- What is folded: an accumulator that starts as Acc(), takes elements in, and joins others.

// f32 and narrower.
struct PlainSum {
  double value = 0;
  __device__ void take(float x) { value += static_cast<double>(x); }
  __device__ void join(const PlainSum& other) { value += other.value; }
  __device__ double result() const { return value; }
};

// f64: there is nothing wider to sum in.
struct ExactSum {
  CompensatedSum sum;
  __device__ void take(double x) { sum.add(x); }
  __device__ void join(const ExactSum& other) { sum.add(other.sum); }
  __device__ double result() const { return sum.value(); }
};

template <class T>
using sum_of_t = std::conditional_t<std::is_same_v<T, double>, ExactSum, PlainSum>;

template <class W>
struct Largest {
  W value = -std::numeric_limits<W>::infinity();
  __device__ void take(W x) { value = Larger()(value, x); }
  __device__ void join(const Largest& other) { take(other.value); }
  __device__ W result() const { return value; }
};

// The largest value, and how often it was seen. Once NaN, no comparison replaces it.
template <class W>
struct Ties {
  W value = -std::numeric_limits<W>::infinity();
  int64_t count = 0;
  __device__ void take(W x) { join({x, 1}); }
  __device__ void join(const Ties& other) {
    if (other.value > value || other.value != other.value) {
      *this = other;
    } else if (other.value == value) {
      count += other.count;
    }
  }
  __device__ double result() const { return static_cast<double>(count); }
};

// ---- How it is laid out

// x's dimensions: those that y keeps, and those that it is reduced over (size 1, or missing in y).
struct Layout {
  StridedIndex<2> kept;     // of x and y
  StridedIndex<1> reduced;  // of x
  int64_t parts = 1;        // of the elements behind one output
  bool by_columns = false;  // a thread for each output, as neighbours stand together; else a block

  __device__ int64_t part_size() const { return (reduced.count + parts - 1) / parts; }
};

constexpr int kThreads = 256;
constexpr int64_t kShort = 32;       // elements that a thread folds alone
constexpr int64_t kPart = 1024;      // the fewest that are worth a part
constexpr int64_t kMostParts = 256;  // joined by one thread
constexpr int64_t kBusy = 1 << 16;   // threads that keep a device busy

}  // namespace

static Layout layout_of(const Tensor& x, const Tensor& y) {
  const Strides y_strides = broadcast_strides(y.shape(), y.strides(), x.shape());
  std::vector<int64_t> k, r;
  const int64_t missing = x.dim() - y.dim();
  for (int64_t axis = 0; axis < x.dim(); ++axis) {
    const bool keeps = axis >= missing && y.size(axis - missing) == x.size(axis);
    k.push_back(keeps ? x.size(axis) : 1);
    r.push_back(keeps ? 1 : x.size(axis));
  }
  Layout l{.kept = {Shape(k), {x.strides(), y_strides}}, .reduced = {Shape(r), {x.strides()}}};
  const bool closer = l.kept.count > 1 && std::abs(l.kept.steps[0][0]) < std::abs(l.reduced.steps[0][0]);
  l.by_columns = closer || l.reduced.count <= kShort;
  const int64_t threads = l.kept.count * (l.by_columns ? 1 : kThreads);
  if (threads > 0)
    l.parts = std::clamp<int64_t>(
        std::min(l.reduced.count / (l.by_columns ? kShort : kPart), kBusy / threads), 1, kMostParts);
  return l;
}

// partial[part][output], a thread for each.
template <class T, class Acc>
static __global__ void fold_columns_kernel(Layout l, const T* x, Acc* partial) {
  for_each_index(l.kept.count * l.parts, [&](int64_t i) {
    const int64_t part = i / l.kept.count, from = l.kept(i - part * l.kept.count)[0];
    const int64_t first = part * l.part_size(), last = min(first + l.part_size(), l.reduced.count);
    Acc acc;
    for (int64_t j = first; j < last; ++j) acc.take(widen(x[from + l.reduced(j)[0]]));
    partial[i] = acc;
  });
}

// The same, a block for each.
template <class T, class Acc>
static __global__ void fold_rows_kernel(Layout l, const T* x, Acc* partial) {
  Acc* accs = dynamic_shared<Acc>();
  for_each_row(l.kept.count * l.parts, [&](int64_t i) {
    const int64_t part = i / l.kept.count, from = l.kept(i - part * l.kept.count)[0];
    const int64_t first = part * l.part_size(), last = min(first + l.part_size(), l.reduced.count);
    Acc acc;
    for (int64_t j = first + threadIdx.x; j < last; j += kThreads) acc.take(widen(x[from + l.reduced(j)[0]]));
    accs[threadIdx.x] = acc;
    for (unsigned half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) accs[threadIdx.x].join(accs[threadIdx.x + half]);
    }
    if (threadIdx.x == 0) partial[i] = accs[0];
    __syncthreads();
  });
}

// Gives finish(offset in y, result) every output.
template <class Acc, class Finish>
static __global__ void join_kernel(Layout l, const Acc* partial, Finish finish) {
  for_each_index(l.kept.count, [&](int64_t output) {
    Acc acc = partial[output];
    for (int64_t part = 1; part < l.parts; ++part) acc.join(partial[part * l.kept.count + output]);
    finish(l.kept(output)[1], acc.result());
  });
}

template <class Acc, class T, class Finish>
static void reduce(CudaBackend& backend, const char* name, const Tensor& x, const Tensor& y, Finish finish) {
  Stream& stream = backend.stream();
  const Layout l = layout_of(x, y);
  const int64_t pieces = l.kept.count * l.parts;
  if (pieces == 0) return;
  const Scratch partial(backend, pieces * static_cast<int64_t>(sizeof(Acc)));
  if (l.by_columns) {
    stream.launch(name, grid_for(stream, pieces), fold_columns_kernel<T, Acc>, l, x.data<T>(),
                  partial.as<Acc>());
  } else {
    stream.launch(name, grid_of_rows(pieces, kThreads, kThreads * sizeof(Acc)), fold_rows_kernel<T, Acc>, l,
                  x.data<T>(), partial.as<Acc>());
  }
  stream.launch(name, grid_for(stream, l.kept.count), join_kernel<Acc, Finish>, l, partial.as<Acc>(), finish);
}

namespace {

// y = scale · result.
template <class T>
struct Store {
  T* y;
  double scale;
  __device__ void operator()(int64_t at, double result) const { y[at] = narrow<T>(scale * result); }
};

// y += scale · result.
template <class T>
struct Increase {
  T* y;
  double scale;
  __device__ void operator()(int64_t at, double result) const {
    y[at] = narrow<T>(static_cast<double>(widen(y[at])) + scale * result);
  }
};

}  // namespace

void CudaBackend::sum(const Tensor& x, double scale, Tensor& y) {
  visit_floating(x.dtype(), "sum", [&]<class T>(std::type_identity<T>) {
    reduce<sum_of_t<T>, T>(*this, "sum", x, y, Store<T>{y.mutable_data<T>(), scale});
  });
}

// Nothing is reduced.
template <class X, class Y>
static __global__ void accumulate_kernel(StridedIndex<2> index, const X* x, wide_t<X> scale, Y* y) {
  for_each_index(index.count, [&](int64_t i) {
    const auto at = index(i);
    y[at[0]] = narrow<Y>(widen(y[at[0]]) + scale * widen(x[at[1]]));
  });
}

void CudaBackend::accumulate(const Tensor& x, double scale, Tensor& y) {
  visit_floating(x.dtype(), "accumulate", [&]<class X>(std::type_identity<X>) {
    visit_floating(y.dtype(), "accumulate", [&]<class Y>(std::type_identity<Y>) {
      if (x.shape() != y.shape()) {
        reduce<sum_of_t<X>, X>(*this, "accumulate", x, y, Increase<Y>{y.mutable_data<Y>(), scale});
      } else {
        const StridedIndex<2> index(x.shape(), {y.strides(), x.strides()});
        stream_.launch("accumulate", grid_for(stream_, index.count), accumulate_kernel<X, Y>, index,
                       x.data<X>(), static_cast<wide_t<X>>(scale), y.mutable_data<Y>());
      }
    });
  });
}

void CudaBackend::max(const Tensor& x, Tensor& y) {
  visit_floating(x.dtype(), "max", [&]<class T>(std::type_identity<T>) {
    reduce<Largest<wide_t<T>>, T>(*this, "max", x, y, Store<T>{y.mutable_data<T>(), 1});
  });
}

// Operands: gx, x, y, ties, gy.
template <class T>
static __global__ void max_backward_kernel(StridedIndex<5> index, T* gx, const T* x, const T* y,
                                           const double* ties, const T* gy) {
  for_each_index(index.count, [&](int64_t i) {
    const auto at = index(i);
    const bool tie = widen(x[at[1]]) == widen(y[at[2]]);
    gx[at[0]] = narrow<T>(tie ? static_cast<double>(widen(gy[at[4]])) / ties[at[3]] : 0);
  });
}

void CudaBackend::max_backward(const Tensor& x, const Tensor& y, const Tensor& gy, Tensor& gx) {
  visit_floating(x.dtype(), "max_backward", [&]<class T>(std::type_identity<T>) {
    Tensor ties(y.shape(), DType::f64, x.device());
    reduce<Ties<wide_t<T>>, T>(*this, "max_backward", x, ties, Store<double>{ties.mutable_data<double>(), 1});
    const auto strides_of = [&](const Tensor& t) {
      return broadcast_strides(t.shape(), t.strides(), x.shape());
    };
    const StridedIndex<5> index(x.shape(),
                                {gx.strides(), x.strides(), strides_of(y), strides_of(ties), strides_of(gy)});
    stream_.launch("max_backward", grid_for(stream_, index.count), max_backward_kernel<T>, index,
                   gx.mutable_data<T>(), x.data<T>(), y.data<T>(), ties.data<double>(), gy.data<T>());
  });
}

}  // namespace tapehead
