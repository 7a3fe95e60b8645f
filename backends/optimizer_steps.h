// What an optimiser's step computes once for all elements, for host and device. Constexpr is what lets code
// of a device call it. `Numbers` is AdamW or Sgd (backends/backend.h), or a device's copy of its numbers.
//
// The formulas of an element, which stand above each step, every backend writes out: the CPU's are vector
// code, compiled for each instruction set, which no function of a shared header can be.
#pragma once

#include <cmath>

namespace tapehead {

/// g *= scale; m = b1·m + c1·g; v = b2·v + c2·g²; p = keep·p - rate·m / (root·sqrt(v) + epsilon).
template <class W>
struct AdamWStep {
  W keep;            ///< 1 - lr·decay
  W scale;           ///< of gradients
  W b1, c1, b2, c2;  ///< beta and 1 - beta
  W rate;            ///< lr / (1 - beta1^step)
  W root;            ///< 1 / sqrt(1 - beta2^step)
  W epsilon;

  template <class Numbers>
  constexpr explicit AdamWStep(const Numbers& n)
      : keep(static_cast<W>(1 - n.learning_rate * n.weight_decay)),
        scale(static_cast<W>(n.gradient_scale)),
        b1(static_cast<W>(n.beta1)),
        c1(static_cast<W>(1 - n.beta1)),
        b2(static_cast<W>(n.beta2)),
        c2(static_cast<W>(1 - n.beta2)),
        rate(static_cast<W>(n.learning_rate / (1 - std::pow(n.beta1, static_cast<double>(n.step))))),
        root(static_cast<W>(1 / std::sqrt(1 - std::pow(n.beta2, static_cast<double>(n.step))))),
        epsilon(static_cast<W>(n.epsilon)) {}
};

/// g = decay·p + scale·g; b = momentum·b + g; p = keep·p - rate·(nesterov ? g + momentum·b : b).
template <class W>
struct SgdStep {
  W keep;   ///< 1 - lr·decay, if decoupled
  W decay;  ///< what of p joins the gradient, else
  W scale;  ///< of gradients
  W momentum;
  W rate;
  bool nesterov;

  template <class Numbers>
  constexpr explicit SgdStep(const Numbers& n)
      : keep(static_cast<W>(n.decoupled ? 1 - n.learning_rate * n.weight_decay : 1)),
        decay(static_cast<W>(n.decoupled ? 0 : n.weight_decay)),
        scale(static_cast<W>(n.gradient_scale)),
        momentum(static_cast<W>(n.momentum)),
        rate(static_cast<W>(n.learning_rate)),
        nesterov(n.nesterov) {}
};

}  // namespace tapehead
