// Optimisers: what a step does to a model's parameters, and what it keeps from step to step.
//
//   const double norm = gradient_norm(model.parameters());
//   optimizer->step(learning_rate, clip_scale(norm, 1));
//   optimizer->zero_grad();
#pragma once

#include <memory>

#include "tapehead/models/module.h"
#include "tapehead/ops/optimizer.h"

namespace tapehead {

/// The Euclidean norm of all gradients together, summed in f64; parameters without a gradient count as 0.
double gradient_norm(const ParameterList& parameters);

struct LossAndNorm {
  double loss, gradient_norm;
};
/// A loss, f64 of shape (), and the norm of the gradients, both read at once: the device
/// is waited for a single time.
LossAndNorm read_loss_and_norm(const Tensor& loss, const ParameterList& parameters);
/// The same in two halves: f64 (2) where the loss is, not waited for; and what it says.
Tensor loss_and_squared_norm(const Tensor& loss, const ParameterList& parameters);
LossAndNorm read_loss_and_norm(const Tensor& loss_and_squared_norm);

/// What torch.nn.utils.clip_grad_norm_ multiplies gradients of this norm by: min(1,
/// max_norm / (norm + 1e-6)). A max_norm of 0 leaves them as they are.
double clip_scale(double norm, double max_norm);

/// The choice of an optimiser and its numbers.
struct OptimizerOptions {
  std::string name = "adamw";  ///< adamw, sgd or muon
  double beta1 = 0.9;          ///< of AdamW, as the next two
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double momentum = 0.95;     ///< of SGD and Muon
  bool nesterov = true;       ///< likewise; where momentum is 0 there is none
  double weight_decay = 0.1;  ///< of matrices (two dimensions or more) alone: not of biases and norms

  bool operator==(const OptimizerOptions&) const = default;

  /// Throws ValueError that names the field, its value and the rule: a name above; betas and
  /// momentum in [0, 1), decay at least 0, epsilon above 0. (torch.optim takes an epsilon of 0, with
  /// which a first gradient of 0 makes a NaN, and a momentum of 1 or more, which never forgets.)
  void validate() const;
};

/// A parameter of f32 or f64 has state of its dtype. One of f16 or bf16 has state and a master weight of
/// f32: a step changes the master weight, and the parameter becomes its rounding, so that changes too
/// small for 16 bits add up until they are seen (Micikevicius et al., "Mixed precision training", 2018).
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One step from the parameters' gradients, each first multiplied by `gradient_scale`. A parameter
  /// without a gradient stays as it is. Gradients stay, too: zero_grad() clears them. Throws ValueError on a
  /// learning rate below 0, before anything has changed.
  void step(double learning_rate, double gradient_scale = 1);
  /// step() in two halves, with its error, for a device that has recorded the second (core/capture.h).
  /// count_step() counts the step and writes what is new in it to `on_device`, f64 (3) where the parameters
  /// are; apply() makes the step that stands there, with the same bits. Muon's apply() waits for the device,
  /// which cannot be recorded: RuntimeError.
  void count_step(double learning_rate, double gradient_scale, StepOnDevice& on_device);
  void apply(const StepOnDevice& on_device) { update({.on_device = on_device}); }
  void zero_grad() const { tapehead::zero_grad(parameters_); }

  /// Steps made so far.
  int64_t steps() const { return steps_; }
  const ParameterList& parameters() const { return parameters_; }
  /// All that a step depends on besides gradients and steps(): "WHAT.PARAMETER" and the
  /// tensor, shared, not a copy. WHAT is one of those that each optimiser names, or "master".
  ParameterList state() const;
  /// The master weights alone, under their parameters' names.
  ParameterList masters() const;
  /// Continues where another optimiser stood: `steps`, and what was copied into the tensors above.
  void set_steps(int64_t steps) { steps_ = steps; }

 protected:
  /// One tensor for each parameter, in their order; undefined where a parameter has none.
  using Tensors = std::vector<Tensor>;

  /// Keeps handles of the parameters, whose dtypes may differ; master weights begin at
  /// their parameters' values. `op` stands for the optimiser in the TypeError, naming the
  /// parameter, on one that is not floating.
  Optimizer(const char* op, ParameterList parameters);

  /// Zeros for every parameter that `wanted` names, of the dtype that state has.
  template <class F>
  Tensors zeros(F&& wanted) const {
    Tensors list;
    for (const auto& parameter : parameters_)
      list.push_back(wanted(parameter) ? zeros_for(parameter.second) : Tensor());
    return list;
  }
  static bool decays(const Tensor& parameter) { return parameter.dim() >= 2; }
  static const OptimizerOptions& validated(const OptimizerOptions& options) {
    options.validate();
    return options;
  }

  /// What step() was given, or where it stands.
  struct Step {
    double learning_rate = 0, gradient_scale = 1;
    StepOnDevice on_device = {};
  };
  /// Parameters that one call of a step takes: of one dtype, and all or none with weight decay.
  struct Group {
    bool decays;
    Tensors p = {}, g = {}, master = {};
    std::vector<Tensors> kept;
  };
  /// Those that have a gradient and something in each of `lists`, which become Group::kept, in their order.
  std::vector<Group> groups(const std::vector<const Tensors*>& lists) const;
  /// step(), once steps() counts it.
  virtual void update(const Step& step) = 0;
  /// The lists that state() is made of.
  virtual std::vector<std::pair<std::string, const Tensors*>> kept() const = 0;

  const ParameterList parameters_;
  Tensors master_;

 private:
  static Tensor zeros_for(const Tensor& parameter);

  int64_t steps_ = 0;
};

/// torch.optim.AdamW's numbers (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019).
/// State: first, second, the moments, which begin at zero. Constructors throw what options.validate()
/// does, and TypeError on parameters that are not floating; so do the other optimisers'.
class AdamWOptimizer : public Optimizer {
 public:
  explicit AdamWOptimizer(ParameterList parameters, const OptimizerOptions& options = {});

 protected:
  /// For the parameters of `wanted` alone; the others are the subclass's.
  template <class F>
  AdamWOptimizer(const char* op, ParameterList parameters, const OptimizerOptions& options, F&& wanted)
      : Optimizer(op, std::move(parameters)),
        options_(validated(options)),
        first_(zeros(wanted)),
        second_(zeros(wanted)) {}

  void update(const Step& step) override;
  std::vector<std::pair<std::string, const Tensors*>> kept() const override;

  const OptimizerOptions options_;

 private:
  Tensors first_, second_;
};

/// torch.optim.SGD's numbers, dampening 0: weight decay is added to the gradient.
/// State: momentum, which begins at zero; none where options.momentum is 0.
class SgdOptimizer final : public Optimizer {
 public:
  explicit SgdOptimizer(ParameterList parameters, const OptimizerOptions& options = {});

 private:
  void update(const Step& step) override;
  std::vector<std::pair<std::string, const Tensors*>> kept() const override;

  const OptimizerOptions options_;
  Tensors momentum_;
};

/// Bytes that make_optimizer's would allocate.
int64_t optimizer_bytes(const ParameterList& parameters, const OptimizerOptions& options);

/// The optimiser of options.name for those of the parameters that require a gradient.
/// Throws ValueError on invalid options.
std::unique_ptr<Optimizer> make_optimizer(const ParameterList& parameters, const OptimizerOptions& options);

}  // namespace tapehead
