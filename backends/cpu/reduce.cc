// Sums and maxima over any dimensions.
//
// All share one loop: kept dimensions outside, reduced ones inside, so that each output is finished in one go, in a fixed
// order, with its sum in f64.
#include <cmath>
#include <limits>

#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/backends/cpu/nd_loop.h"

namespace tapehead {

// Splits x's dimensions into those that y keeps and those that it is reduced over (size 1, or missing in y).
struct Reduction {
  Shape kept, reduced;               // both of x's rank, with 1 for the other's dimensions
  Strides x_strides, y_strides;      // y's are 0 along reduced dimensions

  Reduction(const Tensor& x, const Tensor& y) : x_strides(x.strides()) {
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

// For every element of y, calls finish(y offset, accumulator) with the accumulator that fold(accumulator, x value) built.
// Kept runs are handled in blocks, so that x is read along memory also where y's dimension is the dense one.
template <class T, class A, class Fold, class Finish>
static void reduce(const Tensor& x, const Tensor& y, A initial, Fold&& fold, Finish&& finish) {
  constexpr int64_t kBlock = 256;
  const Reduction r(x, y);
  const T* in = x.data<T>();
  const NdLoop<2> kept(r.kept, {r.x_strides, r.y_strides});
  const NdLoop<1> reduced(r.reduced, {r.x_strides});
  const auto [kx, ky] = kept.steps();
  const int64_t rx = reduced.steps()[0];
  const auto range = [&, kx = kx, ky = ky](const auto& at, int64_t n) {
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t width = std::min(kBlock, n - begin);
      A acc[kBlock];
      std::fill_n(acc, width, initial);
      reduced.run(
          [&](const auto& inner, int64_t m) {
            const T* block = in + at[0] + begin * kx + inner[0];
            for (int64_t j = 0; j < m; ++j) {
              for (int64_t i = 0; i < width; ++i) fold(acc[i], block[i * kx + j * rx]);
            }
          },
          /*serial=*/true);
      for (int64_t i = 0; i < width; ++i) finish(at[1] + (begin + i) * ky, acc[i]);
    }
  };
  kept.run(range, /*serial=*/x.numel() < kGrain);
}

void CpuBackend::sum(const Tensor& x, double scale, Tensor& y) {
  visit_floating(x.dtype(), "sum", [&]<class T>(std::type_identity<T>) {
    T* out = y.mutable_data<T>();
    reduce<T>(
        x, y, 0.0, [](double& acc, T v) { acc += static_cast<wide_t<T>>(v); },
        [&](int64_t at, double total) { out[at] = static_cast<T>(scale * total); });
  });
}

void CpuBackend::accumulate(const Tensor& x, Tensor& y) {
  visit_floating(x.dtype(), "accumulate", [&]<class T>(std::type_identity<T>) {
    T* out = y.mutable_data<T>();
    if (x.shape() == y.shape()) {  // nothing is reduced
      const T* in = x.data<T>();
      const NdLoop<2> loop(x.shape(), {y.strides(), x.strides()});
      const auto [sy, sx] = loop.steps();
      loop.run([&, sy = sy, sx = sx](const auto& at, int64_t n) {
        T* o = out + at[0];
        const T* v = in + at[1];
        const auto add = [](T a, T b) { return static_cast<T>(static_cast<wide_t<T>>(a) + static_cast<wide_t<T>>(b)); };
        if (sy == 1 && sx == 1) {
          for (int64_t i = 0; i < n; ++i) o[i] = add(o[i], v[i]);
        } else {
          for (int64_t i = 0; i < n; ++i) o[i * sy] = add(o[i * sy], v[i * sx]);
        }
      });
      return;
    }
    reduce<T>(
        x, y, 0.0, [](double& acc, T v) { acc += static_cast<wide_t<T>>(v); },
        [&](int64_t at, double total) { out[at] = static_cast<T>(static_cast<double>(static_cast<wide_t<T>>(out[at])) + total); });
  });
}

void CpuBackend::max(const Tensor& x, Tensor& y) {
  visit_floating(x.dtype(), "max", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    T* out = y.mutable_data<T>();
    reduce<T>(
        x, y, -std::numeric_limits<W>::infinity(),
        [](W& acc, T v) {
          const W w = static_cast<W>(v);
          if (w > acc || w != w) acc = w;  // once NaN, no comparison replaces it
        },
        [&](int64_t at, W largest) { out[at] = static_cast<T>(largest); });
  });
}

void CpuBackend::max_backward(const Tensor& x, const Tensor& y, const Tensor& gy, Tensor& gx) {
  visit_floating(x.dtype(), "max_backward", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    // y read at x's elements: reduce over x == y needs both, so it runs over the ties themselves.
    Tensor ties = Tensor::zeros(y.shape(), DType::f64);
    const T* in = x.data<T>();
    const T* largest = y.data<T>();
    const T* up = gy.data<T>();
    const NdLoop<3> count(x.shape(), {x.strides(), broadcast_strides(y.shape(), y.strides(), x.shape()),
                                      broadcast_strides(ties.shape(), ties.strides(), x.shape())});
    double* number = ties.mutable_data<double>();
    const auto steps = count.steps();
    count.run(
        [&](const auto& at, int64_t n) {
          for (int64_t i = 0; i < n; ++i) {
            const W v = static_cast<W>(in[at[0] + i * steps[0]]), m = static_cast<W>(largest[at[1] + i * steps[1]]);
            number[at[2] + i * steps[2]] += v == m ? 1 : 0;
          }
        },
        /*serial=*/true);
    T* out = gx.mutable_data<T>();
    const NdLoop<5> share(x.shape(), {x.strides(), broadcast_strides(y.shape(), y.strides(), x.shape()),
                                      broadcast_strides(ties.shape(), ties.strides(), x.shape()),
                                      broadcast_strides(gy.shape(), gy.strides(), x.shape()), gx.strides()});
    const auto s = share.steps();
    share.run([&](const auto& at, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        const bool tie = static_cast<W>(in[at[0] + i * s[0]]) == static_cast<W>(largest[at[1] + i * s[1]]);
        const double g = tie ? static_cast<W>(up[at[3] + i * s[3]]) / number[at[2] + i * s[2]] : 0.0;
        out[at[4] + i * s[4]] = static_cast<T>(g);
      }
    });
  });
}

}  // namespace tapehead
