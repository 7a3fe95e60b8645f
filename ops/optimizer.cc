#include "tapehead/ops/optimizer.h"

#include <cmath>

#include "tapehead/backends/backend.h"
#include "tapehead/ops/operands.h"

namespace tapehead {

static void check_list(const char* op, std::span<const Tensor> list, const char* what,
                       std::span<const Tensor> p, DType dtype) {
  check<ValueError>(list.size() == p.size(), "[{}] {} {} for {} parameters", op, list.size(), what, p.size());
  for (size_t i = 0; i < p.size(); ++i) {
    check<ValueError>(
        list[i].shape() == p[i].shape() && list[i].is_contiguous(),
        "[{}] entry {} of {} has shape {}{}, the parameter {}: both must be contiguous and agree", op, i,
        what, list[i].shape(), list[i].is_contiguous() ? "" : " (strided)", p[i].shape());
    check<TypeError>(list[i].dtype() == dtype,
                     "[{}] entry {} of {} is {}, but must be {} where the first parameter is {}", op, i, what,
                     list[i].dtype(), dtype, p[0].dtype());
    check_devices(op, {{"parameters", p[0], 0}, {what, list[i], i}});
  }
}

// torch.optim's rules for the numbers of a step; a NaN breaks them.
static void check_not_negative(const char* op, const char* what, double value) {
  check<ValueError>(value >= 0, "[{}] {} is {}: it must be at least 0", op, what, value);
}

static void check_fraction(const char* op, const char* what, double value) {
  check<ValueError>(value >= 0 && value < 1, "[{}] {} is {}: it must be in [0, 1)", op, what, value);
}

static DType dtype_of(std::span<const Tensor> list) { return list.empty() ? DType::f32 : list[0].dtype(); }

// Parameters and master weights; the dtype of what is kept for them.
static DType check_parameters(const char* op, std::span<const Tensor> p, std::span<const Tensor> master) {
  const DType dtype = dtype_of(p), wide = arithmetic_dtype(dtype);
  check<TypeError>(is_floating(dtype), "[{}] parameters are {}, but must be floating", op, dtype);
  check_list(op, p, "parameters", p, dtype);
  if (is_half(dtype)) {
    check_list(op, master, "master weights", p, wide);
  } else {
    check<ValueError>(master.empty(), "[{}] {} master weights for parameters of {}, which take none", op,
                      master.size(), dtype);
  }
  return wide;
}

static void check_on_device(const char* op, const StepOnDevice& numbers, std::span<const Tensor> p) {
  if (!numbers.defined()) return;
  check<ValueError>(
      numbers.shape() == Shape{3} && numbers.dtype() == DType::f64 && numbers.is_contiguous() &&
          (p.empty() || numbers.device() == p[0].device()),
      "[{}] the numbers on the device are {} of shape {} on {}: they must be f64 of shape (3,), where "
      "the parameters are",
      op, numbers.dtype(), numbers.shape(), numbers.device());
}

void adamw_step(const AdamW& numbers, std::span<Tensor> p, std::span<const Tensor> g, std::span<Tensor> m,
                std::span<Tensor> v, std::span<Tensor> master) {
  constexpr const char* kOp = "adamw_step";
  const DType wide = check_parameters(kOp, p, master);
  check_list(kOp, g, "gradients", p, dtype_of(p));
  check_list(kOp, m, "first moments", p, wide);
  check_list(kOp, v, "second moments", p, wide);
  check_on_device(kOp, numbers.on_device, p);
  check<ValueError>(numbers.step >= 1 || numbers.on_device.defined(), "[{}] step is {}, but counts from 1",
                    kOp, numbers.step);
  check_not_negative(kOp, "learning_rate", numbers.learning_rate);
  check_not_negative(kOp, "weight_decay", numbers.weight_decay);
  check_not_negative(kOp, "epsilon", numbers.epsilon);
  check_fraction(kOp, "beta1", numbers.beta1);
  check_fraction(kOp, "beta2", numbers.beta2);
  if (p.empty()) return;
  backend(p[0]).adamw(numbers, p, g, m, v, master);
}

void sgd_step(const Sgd& numbers, std::span<Tensor> p, std::span<const Tensor> g, std::span<Tensor> b,
              std::span<Tensor> master) {
  constexpr const char* kOp = "sgd_step";
  const DType wide = check_parameters(kOp, p, master);
  check_list(kOp, g, "gradients", p, dtype_of(g) == wide ? wide : dtype_of(p));
  if (numbers.momentum != 0) {
    check_list(kOp, b, "momenta", p, wide);
  } else {
    check<ValueError>(b.empty(), "[{}] {} momenta, but a momentum of 0 takes none", kOp, b.size());
  }
  check_on_device(kOp, numbers.on_device, p);
  check_not_negative(kOp, "learning_rate", numbers.learning_rate);
  check_not_negative(kOp, "weight_decay", numbers.weight_decay);
  check_not_negative(kOp, "momentum", numbers.momentum);
  check<ValueError>(numbers.momentum > 0 || !numbers.nesterov, "[{}] nesterov needs a momentum above 0", kOp);
  if (p.empty()) return;
  backend(p[0]).sgd(numbers, p, g, b, master);
}

Tensor squared_norm(std::span<const Tensor> tensors) {
  Tensor y = Tensor::scalar(0, DType::f64, tensors.empty() ? default_device() : tensors[0].device());
  for (size_t i = 0; i < tensors.size(); ++i) {
    check<TypeError>(is_floating(tensors[i].dtype()),
                     "[squared_norm] entry {} of tensors is {}, not floating", i, tensors[i].dtype());
    check<ValueError>(tensors[i].is_contiguous(),
                      "[squared_norm] a tensor of shape {} is strided: all must be contiguous",
                      tensors[i].shape());
    check_devices("squared_norm", {{"tensors", tensors[0], 0}, {"tensors", tensors[i], i}});
  }
  if (!tensors.empty()) backend(y).squared_norm(tensors, y);
  return y;
}

double global_norm(std::span<const Tensor> tensors) {
  return tensors.empty() ? 0 : std::sqrt(squared_norm(tensors).item());
}

}  // namespace tapehead
