#include "tapehead/core/rematerialize.h"

#include <optional>

namespace tapehead {

Tensor rematerialize(std::function<Tensor(const Tensor& x, Generator* random)> function, const Tensor& x,
                     std::span<const Tensor> parameters, Generator* random) {
  const std::optional<Generator> numbers = random ? std::optional(*random) : std::nullopt;
  Tensor y;
  {
    const NoGradGuard no_grad;
    y = function(x, random);
  }
  std::vector<Tensor> inputs = {x};
  inputs.insert(inputs.end(), parameters.begin(), parameters.end());
  const size_t count = inputs.size();
  const auto backward_again = [function = std::move(function), numbers,
                               count](const Upstream& up) -> Gradients {
    Tensor again = up.saved(0).detach();
    for (size_t i = 1; i < count; ++i) up.saved(i);  // throws if changed
    if (up.needs(0)) again.set_requires_grad();
    std::optional<Generator> drawn = numbers;
    Tensor result;
    {
      const EnableGradGuard grad;
      result = function(again, drawn ? &*drawn : nullptr);
    }
    Gradients gradients(count);
    if (!result.requires_grad()) return gradients;
    backward(result, up.grad);
    if (up.needs(0)) gradients[0] = again.grad();
    return gradients;
  };
  return record("rematerialize", y, inputs, inputs, backward_again);
}

}  // namespace tapehead
