// Sums and maxima over any dimensions.
//
// All share one loop, `reduce`. Its order of summation depends on the layout alone, not on the number of
// threads; sums run in f64.
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/backends/cpu/nd_loop.h"
#include "tapehead/backends/cpu/workspace.h"
#include "tapehead/core/compensated_sum.h"

namespace tapehead {

namespace {

// Splits x's dimensions into those that y keeps and those that it is reduced over (size 1, or missing in y).
struct AxisSplit {
  Shape kept, reduced;           // both of x's rank, with 1 for the other's dimensions
  Strides x_strides, y_strides;  // y's are 0 along reduced dimensions

  AxisSplit(const Tensor& x, const Tensor& y) : x_strides(x.strides()) {
    y_strides = broadcast_strides(y.shape(), y.strides(), x.shape());
    std::vector<int64_t> k, r;
    const int64_t missing = x.dim() - y.dim();
    for (int64_t axis = 0; axis < x.dim(); ++axis) {
      const bool keeps = axis >= missing && y.size(axis - missing) == x.size(axis);
      k.push_back(keeps ? x.size(axis) : 1);
      r.push_back(keeps ? 1 : x.size(axis));
    }
    kept = Shape(k);
    reduced = Shape(r);
  }
};

}  // namespace

// Takes what was folded behind outputs that stand `step` apart in y, from the element `at` on. Not a template
// argument of `reduce`, which would be compiled again for every dtype of y.
template <class A>
using Finish = std::function<void(int64_t at, int64_t step, std::span<const A> folded)>;

// For every element of y, calls finish, where fold(accumulator, x value) took in every element of x behind it
// and merge(accumulator, accumulator) joined parts; each starts as `initial`.
template <class T, class A, class Fold, class Merge>
static void reduce(const Tensor& x, const Tensor& y, A initial, Fold fold, Merge merge,
                   const Finish<A>& finish) {
  constexpr int64_t kBlock = 256;    // outputs in progress at once
  constexpr int64_t kLanes = 8;      // independent accumulators along a dense run
  constexpr int64_t kPart = kGrain;  // elements behind one output that one thread folds in one go
  constexpr int64_t kFew = 64;       // outputs that are too few to share among threads
  const AxisSplit r(x, y);
  const T* in = x.data<T>();
  const NdLoop<2> kept(r.kept, {r.x_strides, r.y_strides});
  const NdLoop<1> reduced(r.reduced, {r.x_strides});
  const auto [kx, y_step] = kept.steps();
  const int64_t rx = reduced.steps()[0];
  const int64_t outputs = kept.count(), elements = reduced.count();
  // Chosen once, so that where blocks and threads begin does not choose the order of a sum.
  const bool outputs_lie_closer = outputs > 1 && kx < rx;

  // Elements [first, last) behind each of the outputs [begin, end).
  const auto fold_range = [&, kx = kx, y_step = y_step](int64_t first, int64_t last, int64_t begin,
                                                        int64_t end, const Finish<A>& emit) {
    kept.range(begin, end, [&](const auto& at, int64_t n) {
      for (int64_t done = 0; done < n; done += kBlock) {
        const int64_t width = std::min(kBlock, n - done);
        A acc[kBlock];
        std::fill_n(acc, width, initial);
        reduced.range(first, last, [&](const auto& inner, int64_t m) {
          const T* block = in + at[0] + done * kx + inner[0];
          if (outputs_lie_closer || m < 2 * kLanes) {
            for (int64_t j = 0; j < m; ++j) {
              for (int64_t i = 0; i < width; ++i) fold(acc[i], block[i * kx + j * rx]);
            }
            return;
          }
          for (int64_t i = 0; i < width; ++i) {
            const T* run = block + i * kx;
            A lanes[kLanes];
            std::fill_n(lanes, kLanes, initial);
            int64_t j = 0;
            for (; j + kLanes <= m; j += kLanes) {
              for (int64_t l = 0; l < kLanes; ++l) fold(lanes[l], run[(j + l) * rx]);
            }
            for (; j < m; ++j) fold(lanes[0], run[j * rx]);
            for (const A& lane : lanes) merge(acc[i], lane);
          }
        });
        emit(at[1] + done * y_step, y_step, {acc, static_cast<size_t>(width)});
      }
    });
  };

  const int64_t parts = outputs < kFew ? (elements + kPart - 1) / kPart : 1;
  if (parts <= 1) {
    parallel_for(outputs, kGrain / std::max<int64_t>(elements, 1),
                 [&](int64_t begin, int64_t end) { fold_range(0, elements, begin, end, finish); });
    return;
  }
  Workspace<A> partial(static_cast<size_t>(parts * outputs), initial);
  parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      A* row = partial.data() + part * outputs;
      fold_range(part * kPart, std::min(elements, (part + 1) * kPart), 0, outputs,
                 [&](int64_t, int64_t, std::span<const A> acc) { row = std::ranges::copy(acc, row).out; });
    }
  });
  const A* output = partial.data();
  fold_range(0, 0, 0, outputs, [&](int64_t at, int64_t step, std::span<const A> acc) {
    Workspace<A> joined(acc.begin(), acc.end());
    for (A& total : joined) {
      for (int64_t part = 0; part < parts; ++part) merge(total, output[part * outputs]);
      ++output;
    }
    finish(at, step, joined);
  });
}

// Finishes every element of y with the sum behind it.
template <class T>
static void reduce_sum(const Tensor& x, const Tensor& y, const Finish<double>& finish) {
  if constexpr (std::is_same_v<T, double>) {  // nothing wider to sum in
    reduce<T, CompensatedSum>(
        x, y, {}, [](CompensatedSum& acc, T v) { acc.add(v); },
        [](CompensatedSum& acc, const CompensatedSum& part) { acc.add(part); },
        [&](int64_t at, int64_t step, std::span<const CompensatedSum> sums) {
          Workspace<double> totals;
          for (const CompensatedSum& sum : sums) totals.push_back(sum.value());
          finish(at, step, totals);
        });
  } else {
    reduce<T, double>(
        x, y, 0, [](double& acc, T v) { acc += static_cast<double>(static_cast<wide_t<T>>(v)); },
        [](double& acc, double part) { acc += part; }, finish);
  }
}

// A Finish that gives each element of y, and what was folded behind it, to write(element, folded).
template <class A, class T, class Write>
static Finish<A> each(T* y, Write write) {
  return [=](int64_t at, int64_t step, std::span<const A> folded) {
    for (size_t i = 0; i < folded.size(); ++i) write(y[at + static_cast<int64_t>(i) * step], folded[i]);
  };
}

// The largest value so far, and how often it was seen. Once NaN, no comparison replaces it.
template <class W>
struct Peak {
  W value = -std::numeric_limits<W>::infinity();
  int64_t count = 0;

  void take(W v, int64_t n) {
    if (v > value || v != v) {
      *this = {v, n};
    } else if (v == value) {
      count += n;
    }
  }
};

void CpuBackend::sum(const Tensor& x, double scale, Tensor& y) {
  visit_floating(x.dtype(), "sum", [&]<class T>(std::type_identity<T>) {
    reduce_sum<T>(x, y, each<double>(y.mutable_data<T>(), [=](T& element, double total) {
                    element = static_cast<T>(scale * total);
                  }));
  });
}

// y += scale · x, each of its own dtype.
template <class X, class Y>
static void accumulate_typed(const Tensor& x, double scale, Tensor& y) {
  Y* out = y.mutable_data<Y>();
  if (x.shape() != y.shape()) {
    return reduce_sum<X>(
        x, y, each<double>(out, [=](Y& element, double total) {
          element = static_cast<Y>(static_cast<double>(static_cast<wide_t<Y>>(element)) + scale * total);
        }));
  }
  const X* in = x.data<X>();  // nothing is reduced
  const NdLoop<2> loop(x.shape(), {y.strides(), x.strides()});
  const auto [sy, sx] = loop.steps();
  loop.run([&, sy = sy, sx = sx](const auto& at, int64_t n) {
    Y* o = out + at[0];
    const X* v = in + at[1];
    const auto add = [by = static_cast<wide_t<X>>(scale)](Y a, X b) {
      return static_cast<Y>(static_cast<wide_t<Y>>(a) + by * static_cast<wide_t<X>>(b));
    };
    if (sy == 1 && sx == 1) {
      for (int64_t i = 0; i < n; ++i) o[i] = add(o[i], v[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) o[i * sy] = add(o[i * sy], v[i * sx]);
    }
  });
}

void CpuBackend::accumulate(const Tensor& x, double scale, Tensor& y) {
  visit_floating(x.dtype(), "accumulate", [&]<class X>(std::type_identity<X>) {
    visit_floating(y.dtype(), "accumulate",
                   [&]<class Y>(std::type_identity<Y>) { accumulate_typed<X, Y>(x, scale, y); });
  });
}

void CpuBackend::max(const Tensor& x, Tensor& y) {
  visit_floating(x.dtype(), "max", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    const auto take = [](W& largest, W v) { largest = (v > largest) | (v != v) ? v : largest; };
    reduce<T, W>(
        x, y, -std::numeric_limits<W>::infinity(), [=](W& acc, T v) { take(acc, static_cast<W>(v)); }, take,
        each<W>(y.mutable_data<T>(), [](T& element, W largest) { element = static_cast<T>(largest); }));
  });
}

void CpuBackend::max_backward(const Tensor& x, const Tensor& y, const Tensor& gy, Tensor& gx) {
  visit_floating(x.dtype(), "max_backward", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    Tensor ties(y.shape(), DType::f64, y.device());
    double* number = ties.mutable_data<double>();
    reduce<T, Peak<W>>(
        x, ties, {}, [](Peak<W>& acc, T v) { acc.take(static_cast<W>(v), 1); },
        [](Peak<W>& acc, const Peak<W>& part) { acc.take(part.value, part.count); },
        each<Peak<W>>(number,
                      [](double& count, const Peak<W>& peak) { count = static_cast<double>(peak.count); }));

    const T* in = x.data<T>();
    const T* largest = y.data<T>();
    const T* up = gy.data<T>();
    T* out = gx.mutable_data<T>();
    const auto strides_of = [&](const Tensor& t) {
      return broadcast_strides(t.shape(), t.strides(), x.shape());
    };
    const NdLoop<5> loop(x.shape(),
                         {x.strides(), strides_of(y), strides_of(ties), strides_of(gy), gx.strides()});
    const auto [sx, sy, st, sg, so] = loop.steps();
    loop.run([=, sx = sx, sy = sy, st = st, sg = sg, so = so](const auto& at, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        const bool tie = static_cast<W>(in[at[0] + i * sx]) == static_cast<W>(largest[at[1] + i * sy]);
        const double g = static_cast<double>(static_cast<W>(up[at[3] + i * sg]));
        out[at[4] + i * so] = tie ? static_cast<T>(g / number[at[2] + i * st]) : T(0.0f);
      }
    });
  });
}

}  // namespace tapehead
