// What attention does with one block of queries and one block of keys, in vectors.
//
// Blocks are multiplied where they stand, without packing: one factor is read number by number, with any
// strides, the other and the result in whole vectors, from rows padded to the widest one.
#pragma once

#include <cstdint>

namespace tapehead {

constexpr int64_t kBlock = 64;  ///< positions of a block: its scores fit the first cache

/// Which products c(i, :) = Σ_k a(i, k) · b(k, :) takes: all, k <= i, or k >= i.
enum class Band { full, lower, upper };

/// Element (i, j) stands at data[i · row + j · column].
template <class W>
struct Matrix {
  W* data;
  int64_t row, column = 1;
};

/// c (m, n) = a (m, k) · b (k, n), or += it if `add`. n is padded to whole vectors; b and c have column = 1.
template <class W>
struct BlockProduct {
  int64_t m, n, k;
  Matrix<const W> a, b;
  Matrix<W> c;
  bool add = false;
  Band band = Band::full;
};

/// The vector code, as chosen at run time. Scores are (rows, kBlock).
template <class W>
struct BlockKernels {
  void (*multiply)(const BlockProduct<W>&);

  /// One block of keys enters the softmax: scores (keys, kBlock), of which the first `queries` columns count,
  /// are scaled and become exponentials relative to `largest`, which is updated like `total`; `correction` is
  /// the factor that earlier sums need. On the diagonal query t sees keys <= t. Query t does not see the
  /// first unseen[t] keys; null: it sees them.
  void (*softmax_block)(int64_t queries, int64_t keys, W scale, bool diagonal, const W* unseen, W* scores,
                        W* largest, W* total, W* correction);

  /// Row t of x (rows, width) *= factors[t].
  void (*scale_rows)(int64_t rows, int64_t width, const W* factors, W* x);

  /// scores (queries, kBlock keys) become p = exp(scale · scores - lse), and gp, its gradient, becomes
  /// that of the unscaled scores: scale · p · (gp - delta), where delta = Σ_s p · gp = Σ_d y · gy. Both
  /// are 0 for unseen keys.
  void (*softmax_gradient_block)(int64_t queries, W scale, const W* unseen, const W* lse, const W* delta,
                                 W* scores, W* gp);

  /// result[t] = Σ_d a(t, d) · b(t, d), rows padded with zeros to `width`.
  void (*row_dots)(int64_t rows, int64_t width, Matrix<const W> a, Matrix<const W> b, W* result);
};

/// W is float or double.
template <class W>
BlockKernels<W> block_kernels();

/// The length of rows of whole vectors.
template <class W>
constexpr int64_t padded(int64_t width) {
  constexpr int64_t lanes = 64 / sizeof(W);
  return (width + lanes - 1) / lanes * lanes;
}

}  // namespace tapehead
