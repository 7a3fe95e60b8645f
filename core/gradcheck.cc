#include "tapehead/core/gradcheck.h"

#include <cmath>

#include "tapehead/core/random.h"

namespace tapehead {

// The element of row-major index `i`, as a tensor of one element.
static Tensor element(const Tensor& x, int64_t i) {
  int64_t offset = x.offset();
  for (int64_t axis = x.dim() - 1; axis >= 0; --axis) {
    offset += i % x.size(axis) * x.strides()[static_cast<size_t>(axis)];
    i /= x.size(axis);
  }
  return x.alias({}, {}, offset);
}

namespace {

// Puts an element back, whatever happens to the function meanwhile.
struct Restore {
  Tensor element;
  double value;
  ~Restore() { element.fill(value); }
};

}  // namespace

static double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& function, std::vector<Tensor> inputs,
               const GradcheckOptions& options) {
  bool any = false;
  for (Tensor& x : inputs) {
    if (!x.defined() || !x.requires_grad()) continue;
    check<TypeError>(x.dtype() == DType::f64,
                     "[gradcheck] inputs are f64, not {}: differences need the digits", x.dtype());
    any = true;
    x.set_grad({});
  }
  check<RuntimeError>(any, "[gradcheck] none of the {} inputs requires a gradient", inputs.size());

  const Tensor output = function(inputs);
  check<TypeError>(output.dtype() == DType::f64, "[gradcheck] the output is f64, not {}", output.dtype());
  Generator random{.seed = options.seed};
  std::vector<double> upstream(static_cast<size_t>(output.numel()));
  for (double& u : upstream) u = 2 * random.uniform() - 1;
  backward(output, Tensor::from<double>(output.shape(), upstream, output.device()));

  const NoGradGuard no_grad;
  for (size_t k = 0; k < inputs.size(); ++k) {
    Tensor& x = inputs[k];
    if (!x.defined() || !x.requires_grad()) continue;
    const std::vector<double> analytic = x.grad().defined()
                                             ? x.grad().to_vector<double>()
                                             : std::vector<double>(static_cast<size_t>(x.numel()), 0.0);
    for (int64_t i = 0; i < x.numel(); ++i) {
      Tensor e = element(x, i);
      const double value = e.item();
      const Restore restore{e, value};
      const auto at = [&](double v) {
        e.fill(v);
        return dot(function(inputs).to_vector<double>(), upstream);
      };
      const double numeric = (at(value + options.step) - at(value - options.step)) / (2 * options.step);
      const double got = analytic[static_cast<size_t>(i)];
      // Written so that a NaN fails.
      check<RuntimeError>(std::abs(got - numeric) <= options.absolute + options.relative * std::abs(numeric),
                          "[gradcheck] input {} of shape {}, element {}: analytic {:.10g}, numeric {:.10g}",
                          k, x.shape(), i, got, numeric);
    }
    x.set_grad({});
  }
}

}  // namespace tapehead
