// Softmax and layer norm, row by row.
#include <cmath>
#include <limits>
#include <vector>

#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/backends/cpu/parallel.h"

namespace tapehead {

// Calls f(row) for all rows, each of `columns` elements.
template <class F>
static void for_rows(const Tensor& x, F&& f) {
  const int64_t rows = x.size(0), columns = x.size(1);
  if (columns == 0) return;
  parallel_for(rows, std::max<int64_t>(1, kGrain / columns), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) f(r);
  });
}

void CpuBackend::softmax(const Tensor& x, bool log, Tensor& y) {
  visit_floating(x.dtype(), "softmax", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    const int64_t columns = x.size(1);
    const T* in = x.data<T>();
    T* out = y.mutable_data<T>();
    for_rows(x, [&](int64_t r) {
      const T* row = in + r * columns;
      T* to = out + r * columns;
      W largest = -std::numeric_limits<W>::infinity();
      for (int64_t c = 0; c < columns; ++c) {
        const W v = static_cast<W>(row[c]);
        if (!(v <= largest)) largest = v;
      }
      W sum = 0;
      for (int64_t c = 0; c < columns; ++c) sum += std::exp(static_cast<W>(row[c]) - largest);
      for (int64_t c = 0; c < columns; ++c) {
        const W d = static_cast<W>(row[c]) - largest;
        to[c] = static_cast<T>(log ? d - std::log(sum) : std::exp(d) / sum);
      }
    });
  });
}

void CpuBackend::softmax_backward(const Tensor& y, const Tensor& gy, bool log, Tensor& gx) {
  visit_floating(y.dtype(), "softmax_backward", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    const int64_t columns = y.size(1);
    const T* py = y.data<T>();
    const T* pg = gy.data<T>();
    T* out = gx.mutable_data<T>();
    for_rows(y, [&](int64_t r) {
      const T* yr = py + r * columns;
      const T* gr = pg + r * columns;
      T* to = out + r * columns;
      W sum = 0;
      for (int64_t c = 0; c < columns; ++c)
        sum += log ? static_cast<W>(gr[c]) : static_cast<W>(gr[c]) * static_cast<W>(yr[c]);
      for (int64_t c = 0; c < columns; ++c) {
        const W g = static_cast<W>(gr[c]), v = static_cast<W>(yr[c]);
        to[c] = static_cast<T>(log ? g - std::exp(v) * sum : v * (g - sum));
      }
    });
  });
}

void CpuBackend::layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon,
                            Tensor& y, Tensor& mean, Tensor& rstd) {
  visit_floating(x.dtype(), "layer_norm", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    const int64_t columns = x.size(1);
    const T* in = x.data<T>();
    const T* w = weight.defined() ? weight.data<T>() : nullptr;
    const T* b = bias.defined() ? bias.data<T>() : nullptr;
    T* out = y.mutable_data<T>();
    W* means = mean.defined() ? mean.mutable_data<W>() : nullptr;
    W* rstds = rstd.defined() ? rstd.mutable_data<W>() : nullptr;
    for_rows(x, [&](int64_t r) {
      const T* row = in + r * columns;
      double sum = 0, squares = 0;
      for (int64_t c = 0; c < columns; ++c) sum += static_cast<W>(row[c]);
      const double m = sum / static_cast<double>(columns);
      for (int64_t c = 0; c < columns; ++c)
        squares += (static_cast<W>(row[c]) - m) * (static_cast<W>(row[c]) - m);
      const W center = static_cast<W>(m),
              scale = static_cast<W>(1 / std::sqrt(squares / static_cast<double>(columns) + epsilon));
      if (means) means[r] = center;
      if (rstds) rstds[r] = scale;
      for (int64_t c = 0; c < columns; ++c) {
        const W xhat = (static_cast<W>(row[c]) - center) * scale;
        out[r * columns + c] =
            static_cast<T>(xhat * (w ? static_cast<W>(w[c]) : 1) + (b ? static_cast<W>(b[c]) : 0));
      }
    });
  });
}

void CpuBackend::layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& mean,
                                     const Tensor& rstd, const Tensor& gy, Tensor& gx, Tensor& gweight,
                                     Tensor& gbias) {
  visit_floating(x.dtype(), "layer_norm_backward", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    const int64_t rows = x.size(0), columns = x.size(1);
    const T* in = x.data<T>();
    const T* pg = gy.data<T>();
    const T* w = weight.defined() ? weight.data<T>() : nullptr;
    const W* means = mean.data<W>();
    const W* rstds = rstd.data<W>();
    const auto xhat = [&](int64_t r, int64_t c) {
      return (static_cast<W>(in[r * columns + c]) - means[r]) * rstds[r];
    };
    if (gx.defined()) {
      T* out = gx.mutable_data<T>();
      for_rows(x, [&](int64_t r) {
        double sum = 0, dot = 0;
        for (int64_t c = 0; c < columns; ++c) {
          const W g = static_cast<W>(pg[r * columns + c]) * (w ? static_cast<W>(w[c]) : 1);
          sum += g;
          dot += g * xhat(r, c);
        }
        sum /= static_cast<double>(columns);
        dot /= static_cast<double>(columns);
        for (int64_t c = 0; c < columns; ++c) {
          const W g = static_cast<W>(pg[r * columns + c]) * (w ? static_cast<W>(w[c]) : 1);
          out[r * columns + c] =
              static_cast<T>(rstds[r] * (g - static_cast<W>(sum) - xhat(r, c) * static_cast<W>(dot)));
        }
      });
    }
    if (!gweight.defined() && !gbias.defined()) return;
    std::vector<double> sums(static_cast<size_t>(columns)), dots(static_cast<size_t>(columns));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        sums[static_cast<size_t>(c)] += static_cast<W>(pg[r * columns + c]);
        dots[static_cast<size_t>(c)] += static_cast<W>(pg[r * columns + c]) * xhat(r, c);
      }
    }
    const auto store = [&](const std::vector<double>& from, Tensor& to) {
      if (!to.defined()) return;
      T* p = to.mutable_data<T>();
      for (int64_t c = 0; c < columns; ++c)
        p[c] = static_cast<T>(static_cast<W>(from[static_cast<size_t>(c)]));
    };
    store(dots, gweight);
    store(sums, gbias);
  });
}

}  // namespace tapehead
