#include <cmath>
#include <vector>

#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/backends/cpu/parallel.h"

namespace tapehead {

template <class T>
static T* row(T* base, const Tensor& x, int64_t b, int64_t h, int64_t t) {
  return base + b * x.strides()[0] + h * x.strides()[1] + t * x.strides()[2];
}

void CpuBackend::attention(const Attention& args, Tensor& y, Tensor& lse) {
  visit_floating(y.dtype(), "attention", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    const int64_t H = y.size(1), positions = y.size(2), D = y.size(3);
    const T *q = args.q.data<T>(), *k = args.k.data<T>(), *v = args.v.data<T>();
    T* out = y.mutable_data<T>();
    W* l = lse.mutable_data<W>();
    std::vector<double> p(static_cast<size_t>(positions));
    for (int64_t bh = 0; bh < y.size(0) * H; ++bh) {
      const int64_t b = bh / H, h = bh % H;
      for (int64_t t = 0; t < positions; ++t) {
        const int64_t seen = args.causal ? t + 1 : positions;
        double largest = -INFINITY, total = 0;
        for (int64_t s = 0; s < seen; ++s) {
          double dot = 0;
          for (int64_t d = 0; d < D; ++d) dot += static_cast<W>(row(q, args.q, b, h, t)[d]) * static_cast<W>(row(k, args.k, b, h, s)[d]);
          p[static_cast<size_t>(s)] = args.scale * dot;
          largest = std::max(largest, args.scale * dot);
        }
        for (int64_t s = 0; s < seen; ++s) total += std::exp(p[static_cast<size_t>(s)] - largest);
        l[bh * positions + t] = static_cast<W>(largest + std::log(total));
        for (int64_t d = 0; d < D; ++d) {
          double sum = 0;
          for (int64_t s = 0; s < seen; ++s) sum += std::exp(p[static_cast<size_t>(s)] - largest) / total * static_cast<W>(row(v, args.v, b, h, s)[d]);
          row(out, y, b, h, t)[d] = static_cast<T>(sum);
        }
      }
    }
  });
}

void CpuBackend::attention_backward(const Attention& args, const Tensor& y, const Tensor& lse, const Tensor& gy, Tensor& gq,
                                    Tensor& gk, Tensor& gv) {
  visit_floating(y.dtype(), "attention_backward", [&]<class T>(std::type_identity<T>) {
    using W = wide_t<T>;
    const int64_t H = y.size(1), positions = y.size(2), D = y.size(3);
    const T *q = args.q.data<T>(), *k = args.k.data<T>(), *v = args.v.data<T>(), *out = y.data<T>(), *up = gy.data<T>();
    const W* l = lse.data<W>();
    Tensor nowhere;
    const auto target = [](Tensor& g) { if (g.defined()) g.fill(0); return g.defined() ? g.mutable_data<T>() : nullptr; };
    T *dq = target(gq), *dk = target(gk), *dv = target(gv);
    for (int64_t bh = 0; bh < y.size(0) * H; ++bh) {
      const int64_t b = bh / H, h = bh % H;
      for (int64_t t = 0; t < positions; ++t) {
        double delta = 0;
        for (int64_t d = 0; d < D; ++d) delta += static_cast<W>(row(out, y, b, h, t)[d]) * static_cast<W>(row(up, gy, b, h, t)[d]);
        for (int64_t s = 0; s < (args.causal ? t + 1 : positions); ++s) {
          double dot = 0, gp = 0;
          for (int64_t d = 0; d < D; ++d) {
            dot += static_cast<W>(row(q, args.q, b, h, t)[d]) * static_cast<W>(row(k, args.k, b, h, s)[d]);
            gp += static_cast<W>(row(up, gy, b, h, t)[d]) * static_cast<W>(row(v, args.v, b, h, s)[d]);
          }
          const double p = std::exp(args.scale * dot - l[bh * positions + t]), gs = args.scale * p * (gp - delta);
          const auto add = [](T& to, double x) { to = static_cast<T>(static_cast<W>(to) + x); };
          for (int64_t d = 0; d < D; ++d) {
            if (dq) add(row(dq, gq, b, h, t)[d], gs * static_cast<W>(row(k, args.k, b, h, s)[d]));
            if (dk) add(row(dk, gk, b, h, s)[d], gs * static_cast<W>(row(q, args.q, b, h, t)[d]));
            if (dv) add(row(dv, gv, b, h, s)[d], p * static_cast<W>(row(up, gy, b, h, t)[d]));
          }
        }
      }
    }
  });
}

}  // namespace tapehead
