// Matrix products: who computes each matrix of a batch. Few rows by a kernel of our own; f32 through oneDNN;
// bf16, too, where the processor is faster at it than at f32; other products of 16 bits in panels of f32;
// f64, and of f32 what suits_openblas() names, through OpenBLAS.
#include <algorithm>

#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/backends/cpu/matmul_bf16.h"
#include "tapehead/backends/cpu/matmul_f32.h"
#include "tapehead/backends/cpu/matmul_few_rows.h"
#include "tapehead/backends/cpu/matmul_openblas.h"
#include "tapehead/backends/cpu/matmul_panels.h"
#include "tapehead/backends/cpu/nd_loop.h"

namespace tapehead {

// Calls f(of_a, of_b, of_y) for each matrix of a batch: where the three stand, in elements from their
// tensors' first. One after the other, as each product is parallel inside.
template <class F>
static void for_each_matrix(const Tensor& a, const Tensor& b, const Tensor& y, F&& f) {
  const Shape batch = batch_shape(y);
  const NdLoop<3> loop(batch, {batch_strides(a, batch), batch_strides(b, batch), batch_strides(y, batch)});
  const auto step = loop.steps();
  loop.run(
      [&](const auto& at, int64_t count) {
        for (int64_t i = 0; i < count; ++i) f(at[0] + i * step[0], at[1] + i * step[1], at[2] + i * step[2]);
      },
      /*serial=*/true);
}

// Of operands with 16 bits.
static void matmul_half(CpuBackend& backend, double alpha, const Tensor& a, const Tensor& b, double beta,
                        const Tensor& y) {
  const auto matrix = [](const Tensor& x, int64_t at) {
    return x.alias({x.size(-2), x.size(-1)}, Strides(x.strides().end() - 2, x.strides().end()),
                   x.offset() + at);
  };
  for_each_matrix(a, b, y, [&](int64_t of_a, int64_t of_b, int64_t of_y) {
    const Tensor ma = matrix(a, of_a), mb = matrix(b, of_b);
    Tensor my = matrix(y, of_y);
    if (matmul_bf16(alpha, ma, mb, beta, my) || matmul_few_rows(alpha, ma, mb, beta, my)) return;
    matmul_by_panels(backend, alpha, ma, mb, beta, my);
  });
}

// Of f32 or f64, in a layout that libraries take.
template <class T>
static void matmul_wide(double alpha, const Tensor& a, const MatrixLayout& a_layout, const Tensor& b,
                        const MatrixLayout& b_layout, double beta, Tensor& y) {
  const int64_t M = y.size(-2), N = y.size(-1), K = a.size(-1);
  const int64_t y_leading = matrix_layout(y).value().leading;
  const int64_t longest = std::max({a_layout.leading, b_layout.leading, y_leading});
  const T *pa = a.data<T>(), *pb = b.data<T>();
  T* py = y.mutable_data<T>();
  for_each_matrix(a, b, y, [&](int64_t of_a, int64_t of_b, int64_t of_y) {
    const MatrixAt<T> ma = {pa + of_a, a_layout}, mb = {pb + of_b, b_layout};
    if constexpr (std::is_same_v<T, float>) {
      if (K > 0 && !suits_openblas(M, N, K, longest, beta))
        return matmul_f32(M, N, K, static_cast<float>(alpha), ma, mb, static_cast<float>(beta), py + of_y,
                          y_leading);
    }
    matmul_openblas(M, N, K, alpha, ma, mb, beta, py + of_y, y_leading);
  });
}

void CpuBackend::matmul(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& y) {
  if (y.numel() == 0) return;
  if (is_half(y.dtype()) || is_half(a.dtype()) || is_half(b.dtype()))
    return matmul_half(*this, alpha, a, b, beta, y);
  if (matmul_few_rows(alpha, a, b, beta, y)) return;
  const auto a_layout = matrix_layout(a), b_layout = matrix_layout(b);
  if (!a_layout) return matmul(alpha, a.clone(), b, beta, y);
  if (!b_layout) return matmul(alpha, a, b.clone(), beta, y);
  const auto multiply = y.dtype() == DType::f64 ? matmul_wide<double> : matmul_wide<float>;
  multiply(alpha, a, *a_layout, b, *b_layout, beta, y);
}

}  // namespace tapehead
