// The sparse side of linear_cross_entropy's gradient filter: chunks whose filtered gradient has few entries,
// and the products with those.
//
// Entries of several chunks are kept until their buffer is full, and go to the weight gradient together:
// class by class, so that each of its rows is read and written once for all of them.
//
// Shape letters: F features, C classes, B rows in one chunk, P rows whose entries are kept, S
// entries of a row at most.
#pragma once

#include "tapehead/backends/backend.h"
#include "tapehead/backends/tuning.h"
#include "tapehead/ops/linear_cross_entropy_plan.h"

namespace tapehead {

/// How many entries of a row are kept at most (S); 0: none, all products are dense. The most that a filter
/// can leave, or where that is beyond what pays, C / tuning.classes_per_entry.
int64_t sparse_entries(const GradientFilter& filter, int64_t C, const Tuning& tuning);

/// How many rows' entries are kept at once (P), of n: as many as in the memory of the most
/// that pays of B rows.
int64_t sparse_window(int64_t S, int64_t C, int64_t B, int64_t n, const Tuning& tuning);

class FilteredChunks {
 public:
  /// What stays the same over the chunks of a pass.
  struct Pass {
    Tensor input;         ///< (N, F)
    Tensor weight;        ///< (C, F)
    Tensor ids;           ///< (n) i64: which rows of the input count; undefined: all
    Tensor weight_sums;   ///< (C, F): where the weight gradient adds up; undefined: not wanted
    Tensor bias_sums;     ///< (C), or undefined
    Tensor class_weight;  ///< (C), or undefined
    double label_smoothing = 0, logit_scale = 1;
  };

  /// Takes its buffers from `plan`; without them, it is never in use. With a weight that is not
  /// dense along F neither.
  FilteredChunks(const PassPlan& plan, Pass pass);

  /// The row pass of rows [begin, end), whose input is x (b, F), if it leaves few enough entries: they are
  /// kept. False: it has to be made again, densely. After that chunks are not tried any more, as one is like
  /// the others. `begun` says whether the weight's sums hold anything yet.
  bool row_pass(const CrossEntropyRows& rows, const Tensor& x, int64_t begin, int64_t end, bool& begun);

  /// The input gradient gx (b, F) of the chunk that was kept last.
  void input_gradient(Tensor& gx);

  /// Brings what is still kept to the sums of weight and bias.
  void finish(bool& begun);

  /// What became sparse; the rest of it is 0.
  const GradientFilterStats& stats() const { return stats_; }

 private:
  bool smooths() const { return pass_.label_smoothing > 0; }
  void flush(bool& begun);

  Pass pass_;
  Backend& backend_;
  Tuning tuning_;
  SparseRows entries_;  // of P rows
  int64_t window_ = 0;  // P
  bool in_use_;
  int64_t first_ = 0;  // of the n rows, the first that is kept
  int64_t kept_ = 0;   // rows
  int64_t last_ = 0;   // of them, where the last chunk begins
  GradientFilterStats stats_;

  // Label smoothing adds -row_scale · e / C · w_c · logit_scale to every entry: a matrix of rank one.
  double uniform_ = 0;     // -e / C · logit_scale
  Tensor classes_;         // (1, C): w_c
  Tensor row_scales_;      // (B, 1)
  Tensor classes_weight_;  // (1, F): Σ_c w_c · weight
  Tensor scales_input_;    // (1, F): Σ_r row_scale · input, over chunks
  double scales_sum_ = 0;  // Σ_r row_scale
};

}  // namespace tapehead
