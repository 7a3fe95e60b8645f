#include "tapehead/models/batch_gradient.h"

#include <algorithm>
#include <numeric>

#include "tapehead/core/memory.h"
#include "tapehead/core/view.h"

namespace tapehead {

void HeadMemory::include(const HeadMemory& other) {
  peak_bytes = std::max(peak_bytes, other.peak_bytes);
  gradient_bytes = std::max(gradient_bytes, other.gradient_bytes);
  full_logits_bytes = std::max(full_logits_bytes, other.full_logits_bytes);
}

// Rows first .. end - 1 of a batch.
static Batch rows_of(const Batch& batch, int64_t first, int64_t end) {
  const auto part = [&](const Tensor& x) { return x.defined() ? slice(x, 0, first, end) : x; };
  Batch rows = {.ids = part(batch.ids), .targets = part(batch.targets), .first_seen = part(batch.first_seen)};
  rows.row_tokens.assign(batch.row_tokens.begin() + first, batch.row_tokens.begin() + end);
  rows.target_tokens = std::accumulate(rows.row_tokens.begin(), rows.row_tokens.end(), int64_t{0});
  return rows;
}

// Forward and backward of one micro-batch: adds to `result`.
static void add_micro_batch(const LanguageModel& model, const Batch& batch,
                            const LinearCrossEntropyArgs& head, const ForwardArgs& forward,
                            BatchGradient& result) {
  const Device device = model.device();
  // The weight's gradient, if an earlier micro-batch made it.
  const int64_t live = memory_stats(device, "head").live_bytes;
  reset_peak(device, "head");
  const Tensor loss = model.loss(batch.ids, batch.targets, head, forward);
  device_runtime(device).accumulate(loss.detach(), 1, result.loss);
  backward(loss);

  const int64_t N = batch.ids.numel(), C = model.config().vocab_size, F = model.config().n_embd,
                size = size_of(model.dtype());
  result.head.include({.peak_bytes = memory_stats(device, "head").peak_bytes - live,
                       .gradient_bytes = (N + C) * F * size,
                       .full_logits_bytes = 2 * N * C * size});
}

BatchGradient add_batch_gradient(const LanguageModel& model, const Batch& batch, const TrainConfig& config,
                                 StepNumbers& numbers) {
  LinearCrossEntropyArgs args = config.head.training_args();
  args.normalizer = static_cast<double>(batch.target_tokens);
  args.filter_numbers = &numbers.filter;
  args.filter_stats = std::make_shared<GradientFilterStats>();
  BatchGradient result{.loss = Tensor::scalar(0, DType::f64, model.device())};
  for (int64_t first = 0, rows = config.micro_batch(); first < config.batch_size; first += rows) {
    const Batch part = rows_of(batch, first, std::min(first + rows, config.batch_size));
    args.counted_rows = part.target_tokens;
    add_micro_batch(model, part, args,
                    {.dropout = &numbers.dropout,
                     .first_seen = part.first_seen,
                     .recompute = config.recompute_activations},
                    result);
    result.filter += *args.filter_stats;
  }
  return result;
}

}  // namespace tapehead
