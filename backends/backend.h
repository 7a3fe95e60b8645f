// The contract: every kernel that a device must offer.
//
// Ops check shapes and dtypes, allocate, and call these; kernels trust what they get. Unless said otherwise:
//  - tensors are on this device, of one floating dtype (f64, f32, f16, bf16); outputs do not overlap inputs;
//  - arithmetic runs in f32 or wider and is rounded once, into the output;
//  - "dense" means contiguous; other arguments may have any strides, 0 included;
//  - an undefined output is not wanted, and costs nothing; an undefined input is left out of the formula;
//  - results are the same, bit for bit, from run to run with the same number of threads;
//  - a call may return before its work is done. Only copy_to_host, all_finite and synchronize wait for it.
//
// Shape letters: R rows, C columns (classes), F features, V rows of a table,
// B batch, H heads, G heads of keys and values, T positions, S positions of keys and values, D head width.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <span>

#include "tapehead/backends/gradient_filter.h"
#include "tapehead/backends/step_numbers.h"
#include "tapehead/backends/unary.h"
#include "tapehead/core/tensor.h"

namespace tapehead {

/// Formulas: ops/elementwise.h.
enum class Binary : uint8_t { add, sub, mul, div };

/// A sparse matrix (R, V) of at most S entries a row: value[r, k] stands in column index[r, k], for
/// k < count[r], in any order, no column twice. Dense tensors.
struct SparseRows {
  Tensor count;  ///< (R) i64; S + 1 where there were more
  Tensor index;  ///< (R, S) i32
  Tensor value;  ///< (R, S), f32 or f64
};

/// Which indices an op takes: entry i of a tensor is in [0, n + i % period), or is `ignored`. Constexpr is
/// what lets code of a device ask.
struct IndexRange {
  int64_t n = 0, period = 1;
  std::optional<int64_t> ignored = {};

  constexpr bool ignores(int64_t index) const { return ignored && index == *ignored; }
  constexpr bool holds(int64_t i, int64_t index) const {
    return (index >= 0 && index < n + i % period) || ignores(index);
  }
};

/// Throws what an op says of the first entry that is in no range: where it stands, in
/// elements, and what it is.
using IndexFault = std::function<void(int64_t position, int64_t index)>;

/// What a sum over the rows of a cross entropy is divided by. Constexpr is what lets code of a device ask.
struct RowDivisor {
  bool mean = false;                      ///< else by 1
  std::optional<double> normalizer = {};  ///< takes the place of the rows' weights
  bool zero_if_empty = false;             ///< no rows: by 1, else by NaN

  /// Of `count` rows whose weights add up to `weights`.
  constexpr double of(double weights, int64_t count) const {
    if (!mean) return 1;
    if (count == 0) return zero_if_empty ? 1 : std::numeric_limits<double>::quiet_NaN();
    return normalizer ? *normalizer : weights;
  }
};

/// Arguments of Backend::cross_entropy_targets: N rows, before there are logits.
struct CrossEntropyTargets {
  // What is read.
  Tensor target;        ///< (N) i64 or i32, dense, each in `range`; undefined: class probabilities
  IndexRange range;     ///< of C classes
  Tensor class_weight;  ///< (C), dense; undefined: 1, as for class probabilities
  RowDivisor divisor;

  // What is written.
  Tensor index;   ///< (N) i64: the target; 0 where it is ignored or in no range
  Tensor weight;  ///< (N) f64: holds the rows' weights; becomes 0 where the target is ignored
  /// (N) i64: the rows that count, whose weight is not 0, in order, and then -1. Where it is defined, index
  /// and weight have this order, too, and end with zeros.
  Tensor ids;
  /// (3) f64: `divisor` of the losses, for weights Σ weight · class_weight[target]; of the z-losses, for
  /// Σ weight; and the number of rows that count.
  Tensor divisors;
};

/// Arguments of Backend::cross_entropy_rows: R rows of C logits, with everything that their loss and gradient
/// depend on. The formulas stand at the function. Tensors are dense unless a stride is mentioned; floating
/// ones may have different dtypes. Arithmetic runs in f32, or in f64 where the logits are f64.
struct CrossEntropyRows {
  // What is read.
  Tensor logits;              ///< (R, C), rows at any stride
  Tensor bias;                ///< (C), added to the logits first
  Tensor target_index;        ///< (R) i64, each in [0, C): or
  Tensor target_probability;  ///< (R, C), rows at any stride
  Tensor class_weight;        ///< (C)
  Tensor row_scale;           ///< (R) f64: multiplies the row's loss
  Tensor z_row_scale;         ///< (R) f64: multiplies the row's z-loss; read where z_loss > 0
  double label_smoothing = 0;
  double logit_scale = 1;
  double softcap = 0;        ///< 0: none
  double z_loss = 0;         ///< coefficient
  double gradient_unit = 1;  ///< a power of two; `gradient` is written in units of it
  GradientFilter filter;     ///< of `gradient` and `sparse_gradient`
  /// Stochastic: the numbers of row r (backends/gradient_filter.h) are of the stream filter_seed, and its
  /// blocks begin at filter_first + filter_row[r] · filter_blocks(C).
  uint64_t filter_seed = 0, filter_first = 0;
  Tensor filter_row;  ///< (R) i64; undefined: 0, 1, ...

  // What is written, where defined.
  Tensor loss;            ///< (R) f64
  Tensor lse;             ///< (R) f64
  Tensor target_logprob;  ///< (R) f64: log p of the target index
  Tensor entropy;         ///< (R) f64: -Σ_c p_c · log p_c
  Tensor correct;         ///< (R) i64: 1 if the first of the largest logits is the target index
  Tensor gradient;        ///< (R, C), of the logits as given; any row stride; may begin where `logits` does,
                          ///< also in a narrower dtype: each element is then written after it was read
  Tensor own_gradient;  ///< (R) f64: takes the gradient's entry at the target index, and `gradient` a 0 there
  Tensor target_gradient;  ///< (R, C), of target_probability
  /// (R, C): the entries of `gradient` that the filter leaves, in its stead; only for index targets. Label
  /// smoothing's part of every class, -row_scale · e / C · w_c · logit_scale, is left out, so with it
  /// there is no softcap.
  SparseRows sparse_gradient;
  Tensor filtered_mass;  ///< (R) f64: Σ p_c of what is below the filter's level, without the target index
};

/// Arguments of Backend::attention and attention_backward. Keys and values have S >= T positions, of which
/// the queries are the last T: query t is at position S - T + t, so that new queries can look back on keys
/// and values that were kept.
struct Attention {
  Tensor q;            ///< (B, H, T, D), dense along D
  Tensor k, v;         ///< (B, G, S, D), dense along D; G divides H: query head h reads head h / (H / G)
  double scale = 1;    ///< of q·k
  bool causal = true;  ///< a query sees positions up to its own; else all
  /// (B, T) i64, dense: the first position that each query sees, at least 0 and at most its
  /// own. Undefined: 0.
  Tensor first_seen = {};
};

class Backend : public DeviceRuntime {
 public:
  // ---- Elementwise. y has the inputs' broadcast shape and may be one of the inputs itself.

  virtual void unary(Unary op, const Tensor& x, Tensor& y) = 0;
  /// gx = gy · op'(x); `saved` is y where derivative_uses_result(op), else x. All of one shape.
  virtual void unary_backward(Unary op, const Tensor& saved, const Tensor& gy, Tensor& gx) = 0;
  virtual void binary(Binary op, const Tensor& a, const Tensor& b, Tensor& y) = 0;
  /// Element i of dense y = x_i / (1 - p) where uniform number i of (seed, first) >= p, else 0
  /// (core/random.h). 0 <= p < 1. Its backward is itself with the same numbers.
  virtual void dropout(const Tensor& x, double p, uint64_t seed, uint64_t first, Tensor& y) = 0;

  /// y *= factor, a scalar of any floating dtype; all 0 if factor is 0, and untouched if it is 1. y dense.
  virtual void scale(const Tensor& factor, Tensor& y) = 0;

  // ---- Reductions. y has x's shape with size 1 along the reduced dimensions.

  /// y = scale · sum of x.
  virtual void sum(const Tensor& x, double scale, Tensor& y) = 0;
  /// y = largest x; a NaN wins. No reduced dimension has size 0.
  virtual void max(const Tensor& x, Tensor& y) = 0;
  /// gx = gy / (number of ties) where x = y, else 0. All broadcast to x's shape, y and gy as max gave them.
  virtual void max_backward(const Tensor& x, const Tensor& y, const Tensor& gy, Tensor& gx) = 0;

  // ---- Rows: (R, C) dense.

  /// y = softmax of each row of x, or its logarithm.
  virtual void softmax(const Tensor& x, bool log, Tensor& y) = 0;
  /// gx from y and gy.
  virtual void softmax_backward(const Tensor& y, const Tensor& gy, bool log, Tensor& gx) = 0;
  /// y = (x - mean) · rstd · weight + bias with rstd = 1 / sqrt(variance + epsilon), of each row;
  /// weight, bias (C). mean and rstd: (R), of the arithmetic's dtype, f32 or f64.
  virtual void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon,
                          Tensor& y, Tensor& mean, Tensor& rstd) = 0;
  /// gx (R, C), gweight (C), gbias (C); each may be undefined.
  virtual void layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& mean,
                                   const Tensor& rstd, const Tensor& gy, Tensor& gx, Tensor& gweight,
                                   Tensor& gbias) = 0;
  /// y = x · rrms · weight with rrms = 1 / sqrt(mean of x² + epsilon), of each row (Zhang and Sennrich, "Root
  /// mean square layer normalization", 2019); weight (C). rrms: (R), of the arithmetic's dtype.
  virtual void rms_norm(const Tensor& x, const Tensor& weight, double epsilon, Tensor& y, Tensor& rrms) = 0;
  /// gx (R, C), gweight (C); each may be undefined.
  virtual void rms_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& rrms, const Tensor& gy,
                                 Tensor& gx, Tensor& gweight) = 0;

  /// What the rows of a cross entropy count, and what mean divides by. A target that is in no range is told
  /// to `fault` as in checked_indices().
  virtual void cross_entropy_targets(const CrossEntropyTargets& targets, IndexFault fault) = 0;
  /// The row pass of cross entropy. With z = softcap(logit_scale · (logits + bias)),
  /// softcap(u) = cap · tanh(u / cap), lse = log Σ_c exp(z_c), log p_c = z_c - lse,
  /// w the class weights (1 when absent), e the label smoothing:
  ///   index t:        loss = row_scale · (-(1 - e) · w_t · log p_t - e / C · Σ_c w_c · log p_c)
  ///   probability q:  loss = row_scale · -Σ_c w_c · ((1 - e) · q_c + e / C) · log p_c
  /// (torch.nn.functional.cross_entropy), plus z_row_scale · z_loss · lse² (de Brébisson and Vincent, 2016),
  /// and gradient = d loss / d logits. A class whose factor before log p_c is 0 adds 0, also where log p_c
  /// is -inf. A row whose scales are 0 has loss 0 and gradient 0 whatever its logits. One row's NaN stays in
  /// its row. At a target index neither p - 1 nor log p loses digits to cancellation.
  virtual void cross_entropy_rows(const CrossEntropyRows& rows) = 0;

  // ---- Matrix products.

  /// y = alpha · a·b + beta · y: (..., M, K)·(..., K, N) -> (..., M, N). The leading dimensions of a and b
  /// are y's or broadcast to them; fastest where each matrix is dense along one of its two dimensions; y is
  /// dense along its rows. K = 0 gives beta · y, and beta = 0 never reads y. f32, f16 and bf16 may be mixed
  /// among a, b and y; sums run in f32 or wider and are rounded once.
  virtual void matmul(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& y) = 0;

  /// y (R, F) dense = s · table, for a table (V, F) dense along F, of y's dtype or another. Sums
  /// run in value's dtype.
  virtual void sparse_matmul(const SparseRows& s, const Tensor& table, Tensor& y) = 0;
  /// table (V, F) dense = beta · table + sᵀ · x, beta 0 or 1, for x whose row row[r] belongs to row r
  /// of s, dense along F; row (R) i64, undefined: 0, 1, .... x undefined: all 1. Each row of the
  /// table is rounded once.
  virtual void sparse_transposed_matmul(const SparseRows& s, const Tensor& x, const Tensor& row, double beta,
                                        Tensor& table) = 0;

  // ---- Tables and indices. ids: (R) i64 or i32, dense; table: (V, F) dense.

  /// `ids` (R), all in `range`: other kernels do not look. If one is not, `fault` is called with the first:
  /// at once, or by the call that next waits for the device, and until then 0 stands in its place.
  virtual Tensor checked_indices(const Tensor& ids, const IndexRange& range, IndexFault fault) = 0;
  /// Row r of y (R, F) dense = row ids[r] of `table`, whose rows may have any stride; zeros
  /// where the id is -1.
  virtual void gather_rows(const Tensor& table, const Tensor& ids, Tensor& y) = 0;
  /// Row ids[r] of `table` = row r of x (R, F) dense, in table's dtype; ids are distinct, but for -1, which
  /// is passed over.
  virtual void scatter_rows(const Tensor& x, const Tensor& ids, Tensor& table) = 0;
  /// Row ids[r] of `table` += scale[r] · row r of x (R, F) dense, in a fixed order where ids repeat; scale
  /// (R) f64, undefined: 1. x and table may differ in dtype.
  virtual void scatter_add_rows(const Tensor& x, const Tensor& ids, const Tensor& scale, Tensor& table) = 0;
  /// Row r of y (R, F) dense += scale[r] · row ids[r] of `table`, which may have any strides; scale (R) f64.
  /// table and y may differ in dtype.
  virtual void gather_add_rows(const Tensor& table, const Tensor& ids, const Tensor& scale, Tensor& y) = 0;

  // ---- Attention (Vaswani et al., 2017), by blocks with online softmax (FlashAttention, Dao et al., 2022).

  /// y (B, H, T, D) = softmax(scale · q kᵀ) v, any strides but dense along D; lse (B, H, T) dense, of the
  /// arithmetic's dtype. Memory beyond the outputs does not grow with T · S.
  virtual void attention(const Attention& args, Tensor& y, Tensor& lse) = 0;
  /// gq, gk, gv from y, lse and gy; dense along D, any other strides. What no query sees gets 0.
  virtual void attention_backward(const Attention& args, const Tensor& y, const Tensor& lse, const Tensor& gy,
                                  Tensor& gq, Tensor& gk, Tensor& gv) = 0;

  /// Rotary positions (Su et al., "RoFormer", 2021), with the halves of D paired, as in Hugging Face's Llama:
  /// for i < D/2, y_i = x_i · cosine_i - x_(i+D/2) · sine_i and y_(i+D/2) = x_(i+D/2) · cosine_i + x_i ·
  /// sine_i. `backward` turns the other way: sine with its sign changed, which is the gradient. x and y
  /// (B, H, T, D), dense along D, any other strides; y may be x itself. cosine and sine: (T, D/2) dense, of
  /// the arithmetic's dtype.
  virtual void rotary(const Tensor& x, const Tensor& cosine, const Tensor& sine, bool backward,
                      Tensor& y) = 0;

  // ---- Training.

  /// One step for every parameter p, at least one, with gradient g and moments m, v (dense, each list in the
  /// same order):
  /// p *= 1 - lr·decay; m = b1·m + (1 - b1)·g; v = b2·v + (1 - b2)·g²;
  /// p -= lr · m̂ / (sqrt(v̂) + eps), hats bias-corrected.
  /// Of f32 or f64 all four have one dtype, and `master` is empty. Where p and g are f16 or bf16, m, v and
  /// `master` (one for each p, of its shape) are f32: the step is made on the master weights, which keep what
  /// is too small for p's dtype, and p is written as their rounding, in the same sweep.
  virtual void adamw(const AdamW& numbers, std::span<Tensor> p, std::span<const Tensor> g,
                     std::span<Tensor> m, std::span<Tensor> v, std::span<Tensor> master) = 0;
  /// One step for every parameter, at least one: g += decay · p unless decoupled; b = momentum · b + g;
  /// p -= lr · (nesterov ? g + momentum · b : b). b begins at zero; with momentum 0 its list is empty, and
  /// g stands in its place. dtypes and `master` as for adamw, b being what m is there; but a p of 16 bits
  /// may have a g of f32.
  virtual void sgd(const Sgd& numbers, std::span<Tensor> p, std::span<const Tensor> g, std::span<Tensor> b,
                   std::span<Tensor> master) = 0;
  /// y, f64 of shape () = Σ x² over all dense tensors, summed in f64.
  virtual void squared_norm(std::span<const Tensor> tensors, Tensor& y) = 0;
  /// Dense y filled with normal numbers from (seed, first), four elements from a block, by Box and Muller
  /// (1958), computed in f64: words (w0, w1) of a block give elements 0 and 1, (w2, w3) elements 2 and 3, as
  /// the cosine and sine of angle 2π · w1 / 2³² times sqrt(-2 · ln((w0 + 1) / 2³²)).
  virtual void normal(double mean, double deviation, uint64_t seed, uint64_t first, Tensor& y) = 0;
};

/// The backend of `device`. Throws ValueError if this build has none, saying what is missing.
Backend& backend(Device device);

/// The backend of the device of `x`.
inline Backend& backend(const Tensor& x) { return backend(x.device()); }

}  // namespace tapehead
