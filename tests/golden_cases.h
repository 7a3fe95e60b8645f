// Golden files (tests/reference/README.md): the cases of an op, and comparison with what the op gives here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tapehead/core/tape.h"

namespace tapehead {

/// One call of an op in PyTorch. The tensors are fresh leaves for each load, on the default device.
struct GoldenCase {
  std::string name;    ///< "<op>/<case>"
  std::string params;  ///< the op's parameters, as JSON
  std::vector<std::string> roles;
  std::vector<Tensor> inputs;  ///< in the order of the roles; those with a gradient require one
  std::vector<Tensor> grads;   ///< by input; undefined where there is none
  Tensor out;
  Tensor grad_out;

  /// The input of this role; undefined if the case has none.
  Tensor input(const std::string& role) const;

  /// Whether the op was called with this parameter; one of a group is named "group/name".
  bool has(const std::string& parameter) const;
  /// Whether it was called without it, or with None.
  bool is_none(const std::string& parameter) const;
  /// Its value. Throw nlohmann::json::exception where there is none, or one of another kind.
  bool flag(const std::string& parameter) const;
  int64_t integer(const std::string& parameter) const;
  double number(const std::string& parameter) const;
  std::string text(const std::string& parameter) const;
  std::vector<int64_t> integers(const std::string& parameter) const;
  std::vector<float> floats(const std::string& parameter) const;

  /// A mean over nothing: its NaN is to be matched, its gradients are not.
  bool degenerate() const { return has("degenerate") && flag("degenerate"); }
};

/// All cases of `op` in tests/golden/<file>, sorted by name. Throws ValueError if there is none.
std::vector<GoldenCase> golden_cases(const std::string& file, const std::string& op);

/// Expects equal shapes and dtypes, and |actual - expected| <= atol + rtol · |expected| for every element,
/// where NaN equals NaN and an infinity itself. A failure begins with `what` and shows the worst element.
void expect_close(const Tensor& actual, const Tensor& expected, double rtol, double atol,
                  const std::string& what);

/// Compares `out`, computed from golden.inputs, with golden.out; then clears the inputs' gradients, runs
/// backward(out, golden.grad_out) and compares them with golden.grads.
void expect_golden(const GoldenCase& golden, const Tensor& out, double rtol, double atol);

}  // namespace tapehead
