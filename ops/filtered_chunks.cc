#include "tapehead/ops/filtered_chunks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tapehead/core/view.h"
#include "tapehead/ops/row_loss.h"

namespace tapehead {

int64_t sparse_entries(const GradientFilter& filter, int64_t C, const Tuning& tuning) {
  if (filter.kind == GradientFilter::none) return 0;
  const double whole = 1 / filter.level;  // so many p are >= level at most
  const double most =
      filter.kind == GradientFilter::threshold
          ? whole + 2
          : 2 * whole + 8 * std::sqrt(whole) + 16;  // sampled ones: their mean and 8 deviations
  const int64_t pays = C / tuning.classes_per_entry;
  return most < static_cast<double>(pays) ? static_cast<int64_t>(most) : pays;
}

int64_t sparse_window(int64_t S, int64_t C, int64_t B, int64_t n, const Tuning& tuning) {
  const int64_t fits = B * (C / tuning.classes_per_entry) / std::max<int64_t>(S, 1);
  return std::clamp(fits, std::min(B, n), std::max<int64_t>(n, 1));
}

FilteredChunks::FilteredChunks(const PassPlan& plan, Pass pass)
    : pass_(std::move(pass)),
      backend_(tapehead::backend(pass_.weight)),
      tuning_(tuning(pass_.weight.device(), pass_.weight.dtype())) {
  const Device device = pass_.weight.device();
  const auto buffer = [&](std::string_view name) { return plan.allocate(name, device); };
  entries_ = {buffer("kept counts"), buffer("kept classes"), buffer("kept gradients")};
  in_use_ = entries_.count.defined() && pass_.weight.strides()[1] == 1 && pass_.input.strides()[1] == 1;
  if (!in_use_) return;
  window_ = entries_.count.size(0);
  if (!smooths()) return;
  const int64_t C = pass_.weight.size(0);
  uniform_ = -pass_.label_smoothing / static_cast<double>(C) * pass_.logit_scale;
  classes_ = buffer("smoothed classes");
  row_scales_ = buffer("smoothed row scales");
  classes_weight_ = buffer("smoothed weight");
  scales_input_ = buffer("smoothed input");
  if (pass_.class_weight.defined()) {
    backend_.copy(pass_.class_weight, classes_);
  } else {
    classes_.fill(1);
  }
  if (classes_weight_.defined()) backend_.matmul(1, classes_, pass_.weight, 0, classes_weight_);
  if (scales_input_.defined()) scales_input_.fill(0);
}

static SparseRows rows_of(const SparseRows& all, int64_t begin, int64_t end) {
  return {row_range(all.count, begin, end), row_range(all.index, begin, end),
          row_range(all.value, begin, end)};
}

bool FilteredChunks::row_pass(const CrossEntropyRows& rows, const Tensor& x, int64_t begin, int64_t end,
                              bool& begun) {
  if (!in_use_) return false;
  const int64_t b = end - begin, C = pass_.weight.size(0), S = entries_.index.size(1);
  if (kept_ + b > window_) flush(begun);
  CrossEntropyRows sparse = rows;
  sparse.sparse_gradient = rows_of(entries_, kept_, kept_ + b);
  sparse.own_gradient = {};  // one entry more
  backend_.cross_entropy_rows(sparse);
  const std::vector<int64_t> counts = sparse.sparse_gradient.count.to_vector<int64_t>();
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  in_use_ =
      *std::max_element(counts.begin(), counts.end()) <= S && total <= b * C / tuning_.classes_per_entry;
  if (!in_use_) return false;
  if (kept_ == 0) first_ = begin;
  last_ = kept_;
  kept_ += b;
  stats_ += {.sparse_chunks = 1, .sparse_rows = b, .entries = total};
  if (smooths()) {
    Tensor scales = row_range(row_scales_, 0, b);
    backend_.copy(reshape(rows.row_scale, {b, 1}), scales);
    for (double s : rows.row_scale.to_vector<double>()) scales_sum_ += s;
    if (scales_input_.defined()) backend_.matmul(1, transpose(scales, 0, 1), x, 1, scales_input_);
  }
  return true;
}

void FilteredChunks::input_gradient(Tensor& gx) {
  backend_.sparse_matmul(rows_of(entries_, last_, kept_), pass_.weight, gx);
  if (smooths()) backend_.matmul(uniform_, row_range(row_scales_, 0, kept_ - last_), classes_weight_, 1, gx);
}

void FilteredChunks::flush(bool& begun) {
  if (kept_ == 0) return;
  const SparseRows kept = rows_of(entries_, 0, kept_);
  if (pass_.weight_sums.defined()) {
    const int64_t end = first_ + kept_;
    const bool all = !pass_.ids.defined();
    backend_.sparse_transposed_matmul(kept, all ? row_range(pass_.input, first_, end) : pass_.input,
                                      row_range(pass_.ids, first_, end), begun ? 1 : 0, pass_.weight_sums);
    begun = true;
  }
  if (pass_.bias_sums.defined()) {
    Tensor column = reshape(pass_.bias_sums, {pass_.bias_sums.numel(), 1});
    backend_.sparse_transposed_matmul(kept, {}, {}, 1, column);
  }
  kept_ = 0;
}

void FilteredChunks::finish(bool& begun) {
  flush(begun);
  if (!smooths() || stats_.sparse_chunks == 0) return;
  if (pass_.weight_sums.defined())
    backend_.matmul(uniform_, transpose(classes_, 0, 1), scales_input_, 1, pass_.weight_sums);
  if (pass_.bias_sums.defined()) {
    backend_.accumulate(reshape(classes_, {classes_.numel()}), uniform_ * scales_sum_, pass_.bias_sums);
  }
}

}  // namespace tapehead
