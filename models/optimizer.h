// AdamW over a model's parameters.
#pragma once

#include "tapehead/models/module.h"

namespace tapehead {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  ///< of matrices (two dimensions or more) alone: not of biases and layer norms

  bool operator==(const AdamWOptions&) const = default;
};

/// torch.optim.AdamW's numbers (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019).
///
/// A parameter of f32 or f64 has moments of its dtype. One of f16 or bf16 has moments and a master weight of
/// f32: a step changes the master weight, and the parameter becomes its rounding, so that changes too small
/// for 16 bits add up until they are seen (Micikevicius et al., "Mixed precision training", 2018).
class AdamWOptimizer {
 public:
  /// Keeps handles of the parameters, whose dtypes may differ; the moments begin at zero, master weights at
  /// their parameters' values. Throws TypeError, naming the parameter, on one that is not floating.
  explicit AdamWOptimizer(ParameterList parameters, const AdamWOptions& options = {});

  /// One step from the parameters' gradients, which are then cleared. They are first scaled by
  /// min(1, max_norm / (norm + 1e-6)), norm being that of all together (torch.nn.utils.clip_grad_norm_);
  /// max_norm 0 leaves them as they are. A parameter without a gradient stays as it is. Returns norm.
  /// Throws RuntimeError, with nothing changed, if norm is no finite number.
  double step(double learning_rate, double max_norm = 0);

  /// Steps made so far.
  int64_t steps() const { return steps_; }
  /// First and second moments under the names of their parameters; shared, not copies.
  ParameterList first_moments() const;
  ParameterList second_moments() const;
  /// The same for master weights: of the 16-bit parameters alone.
  ParameterList masters() const;
  /// Continues where another optimiser stood: `steps`, and what was copied into the tensors above.
  void set_steps(int64_t steps) { steps_ = steps; }

 private:
  ParameterList parameters_;
  AdamWOptions options_;
  std::vector<Tensor> first_, second_;  // in the parameters' order
  std::vector<Tensor> master_;          // likewise; undefined where the parameter has 32 bits or more
  int64_t steps_ = 0;
};

}  // namespace tapehead
