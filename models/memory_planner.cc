#include "tapehead/models/memory_planner.h"

#include <algorithm>
#include <cmath>

#include "tapehead/core/memory.h"
#include "tapehead/models/freeze.h"
#include "tapehead/ops/linear_cross_entropy_plan.h"

namespace tapehead {

// What forward keeps of `rows` contexts of `positions` tokens each.
static int64_t count_activations(const LanguageModel& model, int64_t rows, int64_t positions,
                                 bool recompute) {
  Generator dropout;
  const Tensor ids = Tensor::zeros({rows, positions}, DType::i64, model.device());
  const int64_t before = memory_stats(model.device()).live_bytes;
  const Tensor hidden = model.hidden(ids, {.dropout = &dropout, .recompute = recompute});
  return memory_stats(model.device()).live_bytes - before;
}

MemoryPlanner::MemoryPlanner(const TrainConfig& config, PlanConditions conditions)
    : config_(config), device_(default_device()), recorded_(conditions.recorded) {
  config.validate();
  const auto outline = make_model(config.model, {.dtype = config.dtype, .values = Initializer::outline});
  const LanguageModel& model = *outline;
  if (!config.freeze.empty()) freeze(model.parameters(), config.freeze);
  for (const auto& [name, p] : model.parameters()) {
    fixed_.parameters += p.bytes();
    if (p.requires_grad()) fixed_.gradients += p.bytes();
    const int64_t exact = p.numel() * size_of(DType::f32);
    if (conditions.loaded) {  // tensor by tensor, from the host
      if (device_ != Device{}) fixed_.start = std::max(fixed_.start, exact);
    } else if (is_half(p.dtype())) {
      fixed_.start += exact;
    }
  }
  fixed_.optimizer = optimizer_bytes(model.parameters(), config.optimizer);
  trains_head_ = model.head_weight().requires_grad();

  const int64_t positions = std::min<int64_t>(config.model.n_positions, 16);
  const auto count = [&](int64_t rows, bool recompute) {
    return static_cast<double>(count_activations(model, rows, positions, recompute)) /
           static_cast<double>(positions);
  };
  const bool recompute = config.recompute_activations;
  bytes_per_token_ = count(2, recompute) - count(1, recompute);
  bytes_per_position_ = count(1, recompute) - bytes_per_token_;
  // Backward has one block at a time as if it had been kept.
  if (recompute)
    bytes_per_block_token_ = (count(2, false) - count(1, false)) / static_cast<double>(config.model.n_layer);
  trains_body_ = model.hidden(Tensor::zeros({1, 1}, DType::i64, model.device())).requires_grad();
}

MemoryPlan MemoryPlanner::plan(int64_t micro_batch) const {
  MemoryPlan plan = fixed_;
  const int64_t positions = config_.model.n_positions, tokens = micro_batch * positions;
  plan.activations = std::llround(bytes_per_token_ * static_cast<double>(tokens) +
                                  bytes_per_position_ * static_cast<double>(positions));
  const LinearCrossEntropyProblem problem{.N = tokens,
                                          .F = config_.model.n_embd,
                                          .C = config_.model.vocab_size,
                                          .dtype = config_.dtype,
                                          .device = device_,
                                          .input_grad = trains_body_,
                                          .weight_grad = trains_head_};
  const PathPlan head = plan_linear_cross_entropy(problem, config_.head.training_args()).chunked;
  plan.head = head.peak_bytes();
  const int64_t block = std::llround(bytes_per_block_token_ * static_cast<double>(tokens));
  const int64_t earlier = micro_batch < config_.batch_size ? plan.gradients : 0;
  int64_t step = std::max(earlier + plan.activations + std::max(plan.head, block), plan.gradients);
  if (recorded_) {
    // A micro-batch's own gradients are added to the earlier ones at the end of backward, or of a block's.
    const int64_t own = config_.recompute_activations ? earlier / config_.model.n_layer : earlier;
    step = plan.recording = plan.activations + plan.head + block + plan.gradients + own;
  }
  plan.peak = plan.parameters + plan.optimizer + std::max(step, plan.start);
  plan.moments = {
      {.at = "the beginning"},
      {.at = "the end of forward", .activations = plan.activations},
      {.at = "the head", .activations = plan.activations, .head = plan.head},
      {.at = "half of backward", .gradients = plan.gradients / 2, .activations = plan.activations / 2},
      {.at = "the end of backward", .gradients = plan.gradients},
      {.at = "the end"}};
  return plan;
}

}  // namespace tapehead
