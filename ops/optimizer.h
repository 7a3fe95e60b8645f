// What an optimiser does to many tensors at once. Nothing here is recorded on the tape.
#pragma once

#include <span>

#include "tapehead/backends/step_numbers.h"

namespace tapehead {

/// One step of torch.optim.AdamW, in place, for every parameter p with its gradient g and moments m and v:
/// p *= 1 - lr·decay; g *= gradient_scale; m = beta1·m + (1 - beta1)·g; v = beta2·v + (1 - beta2)·g²;
/// p -= lr · m̂ / (sqrt(v̂) + epsilon) with m̂ = m / (1 - beta1^step), v̂ = v / (1 - beta2^step).
///
/// All lists have one order, and entries of one place one shape; all tensors are contiguous and on one
/// device. p and g have one floating dtype. Where that is f32 or f64, m and v have it, too, and there are no
/// master weights. Where it is f16 or bf16, m, v and `master` are f32: the step is made on the master
/// weights, and each p is then its master weight rounded. Throws ValueError on lists, shapes or devices that
/// do not match and on numbers that torch.optim.AdamW refuses (a learning rate, decay or epsilon below 0, a
/// beta outside [0, 1)), TypeError on dtypes.
void adamw_step(const AdamW& numbers, std::span<Tensor> p, std::span<const Tensor> g, std::span<Tensor> m,
                std::span<Tensor> v, std::span<Tensor> master = {});

/// One step of torch.optim.SGD with dampening 0, in place, for every parameter p with its
/// gradient g and momentum b:
/// g *= gradient_scale; g += decay·p unless decoupled, which makes p *= 1 - lr·decay instead;
/// b = momentum·b + g; p -= lr · (nesterov ? g + momentum·b : b). With momentum 0, b is empty and g
/// stands in its place.
///
/// Lists, dtypes (b as m) and errors are adamw_step's, but where p has 16 bits g may also be f32; the numbers
/// are those of torch.optim.SGD, which refuses a momentum below 0 and nesterov without one.
void sgd_step(const Sgd& numbers, std::span<Tensor> p, std::span<const Tensor> g, std::span<Tensor> b,
              std::span<Tensor> master = {});

/// Σ x² over all elements of all tensors, summed in f64: shape (), on their device, not waited for. Throws
/// ValueError unless all are contiguous and on one device, TypeError unless they are floating.
Tensor squared_norm(std::span<const Tensor> tensors);

/// The Euclidean norm of all elements of all tensors together, summed in f64; 0 for no tensors. As
/// squared_norm(), but waits for it.
double global_norm(std::span<const Tensor> tensors);

}  // namespace tapehead
