#include "tapehead/models/head_memory_plan.h"

#include <algorithm>
#include <span>

#include "tapehead/models/module.h"
#include "tapehead/models/optimizer.h"
#include "tapehead/models/windows.h"
#include "tapehead/ops/linear_cross_entropy_plan.h"

namespace tapehead {

MemoryPlan plan_head_training(const HeadTrainConfig& config, const LabelledFeatures& data) {
  const DType dtype = data.features.dtype();
  const int64_t N = config.batch_size, F = data.features.size(1), C = config.classes;
  Initializer make{.dtype = dtype, .device = {}, .values = Initializer::outline};
  ParameterList parameters = {{"weight", make.matrix(C, F, 0)}};
  if (config.bias) parameters.emplace_back("bias", make.vector(C, 0));

  const std::span targets(data.targets.data<int64_t>(), static_cast<size_t>(data.targets.numel()));
  const bool ignores = std::ranges::find(targets, kIgnoredTarget) != targets.end();
  const LinearCrossEntropyProblem problem{.N = N,
                                          .F = F,
                                          .C = C,
                                          .dtype = dtype,
                                          .device = default_device(),
                                          .bias = config.bias,
                                          .input_grad = false,
                                          .ignored_rows = ignores ? 1 : 0};
  const PathPlan head = plan_linear_cross_entropy(problem, config.head.training_args()).chunked;

  MemoryPlan plan;
  for (const auto& [name, p] : parameters) plan.parameters += p.bytes();
  plan.gradients = plan.parameters;
  plan.optimizer = optimizer_bytes(parameters, config.optimizer);
  plan.activations = N * (F * size_of(dtype) + size_of(DType::i64));
  plan.head = head.peak_bytes();  // with the gradients
  plan.peak = plan.parameters + plan.optimizer + plan.activations + plan.head;
  return plan;
}

}  // namespace tapehead
