#include "tapehead/models/head_memory_planner.h"

#include <algorithm>
#include <span>

#include "tapehead/models/module.h"
#include "tapehead/models/optimizer.h"
#include "tapehead/models/windows.h"
#include "tapehead/ops/linear_cross_entropy_plan.h"

namespace tapehead {

static bool has_ignored_target(const Tensor& targets) {
  const std::span all(targets.data<int64_t>(), static_cast<size_t>(targets.numel()));
  return std::ranges::find(all, kIgnoredTarget) != all.end();
}

HeadMemoryPlanner::HeadMemoryPlanner(const LabelledFeatures& data)
    : features_(data.features.size(1)),
      dtype_(data.features.dtype()),
      ignores_(has_ignored_target(data.targets)) {}

MemoryPlan HeadMemoryPlanner::plan(const HeadTrainConfig& config) const {
  const int64_t N = config.batch_size, F = features_, C = config.classes;
  Initializer make{.dtype = dtype_, .device = {}, .values = Initializer::outline};
  ParameterList parameters = {{"weight", make.matrix(C, F, 0)}};
  if (config.bias) parameters.emplace_back("bias", make.vector(C, 0));

  const LinearCrossEntropyProblem problem{.N = N,
                                          .F = F,
                                          .C = C,
                                          .dtype = dtype_,
                                          .device = default_device(),
                                          .bias = config.bias,
                                          .input_grad = false,
                                          .ignored_rows = ignores_ ? 1 : 0};
  const PathPlan head = plan_linear_cross_entropy(problem, config.head.training_args()).chunked;

  MemoryPlan plan;
  for (const auto& [name, p] : parameters) plan.parameters += p.bytes();
  plan.gradients = plan.parameters;
  plan.optimizer = optimizer_bytes(parameters, config.optimizer);
  plan.activations = N * (F * size_of(dtype_) + size_of(DType::i64));
  plan.head = head.peak_bytes();  // with the gradients
  plan.peak = plan.parameters + plan.optimizer + plan.activations + plan.head;
  plan.moments = {{.at = "the beginning"},
                  {.at = "the batch", .activations = plan.activations},
                  {.at = "the head", .activations = plan.activations, .head = plan.head},
                  {.at = "backward", .gradients = plan.gradients, .activations = plan.activations},
                  {.at = "the end"}};
  return plan;
}

}  // namespace tapehead
