#include "tapehead/tests/golden_cases.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tapehead/core/safetensors.h"

namespace tapehead {

Tensor GoldenCase::input(const std::string& role) const {
  const auto found = std::find(roles.begin(), roles.end(), role);
  return found == roles.end() ? Tensor() : inputs.at(static_cast<size_t>(found - roles.begin()));
}

static nlohmann::json::json_pointer pointer(const std::string& parameter) {
  return nlohmann::json::json_pointer("/" + parameter);
}

template <class T>
static T value(const GoldenCase& golden, const std::string& parameter) {
  return nlohmann::json::parse(golden.params).at(pointer(parameter)).get<T>();
}

bool GoldenCase::has(const std::string& parameter) const {
  return nlohmann::json::parse(params).contains(pointer(parameter));
}

bool GoldenCase::is_none(const std::string& parameter) const {
  return !has(parameter) || nlohmann::json::parse(params).at(pointer(parameter)).is_null();
}

bool GoldenCase::flag(const std::string& parameter) const { return value<bool>(*this, parameter); }
int64_t GoldenCase::integer(const std::string& parameter) const { return value<int64_t>(*this, parameter); }
double GoldenCase::number(const std::string& parameter) const { return value<double>(*this, parameter); }
std::string GoldenCase::text(const std::string& parameter) const {
  return value<std::string>(*this, parameter);
}
std::vector<int64_t> GoldenCase::integers(const std::string& parameter) const {
  return value<std::vector<int64_t>>(*this, parameter);
}
std::vector<float> GoldenCase::floats(const std::string& parameter) const {
  return value<std::vector<float>>(*this, parameter);
}

std::vector<GoldenCase> golden_cases(const std::string& file, const std::string& op) {
  const SafetensorsFile golden = SafetensorsFile::open("tests/golden/" + file);
  const auto tensor = [&](const std::string& name) { return golden.tensor(name).to(default_device()); };
  std::vector<GoldenCase> cases;
  for (const auto& [name, parameters] : golden.metadata()) {
    if (!name.starts_with(op + "/")) continue;
    GoldenCase c{.name = name,
                 .params = parameters,
                 .roles = nlohmann::json::parse(parameters).at("inputs"),
                 .inputs = {},
                 .grads = {},
                 .out = tensor(name + "/out"),
                 .grad_out = tensor(name + "/grad_out")};
    for (size_t i = 0; i < c.roles.size(); ++i) {
      const std::string grad = fmt::format("{}/grad{}", name, i);
      c.inputs.push_back(tensor(fmt::format("{}/in{}", name, i)));
      c.grads.push_back(golden.contains(grad) ? tensor(grad) : Tensor());
      if (c.grads.back().defined()) c.inputs.back().set_requires_grad();
    }
    cases.push_back(std::move(c));
  }
  check<ValueError>(
      !cases.empty(),
      "[golden_cases] tests/golden/{} has no case of \"{}\": tests/reference/README.md says how to make "
      "some; or test the op against numbers of your own",
      file, op);
  return cases;
}

// "(1, 0, 2)" for the element of row-major index i.
static std::string position(const Shape& shape, int64_t i) {
  std::vector<int64_t> index(static_cast<size_t>(shape.dim()));
  for (size_t axis = index.size(); axis-- > 0;) {
    index[axis] = i % shape.sizes()[axis];
    i /= shape.sizes()[axis];
  }
  return fmt::format("({})", fmt::join(index, ", "));
}

void expect_close(const Tensor& actual, const Tensor& expected, double rtol, double atol,
                  const std::string& what) {
  ASSERT_TRUE(actual.defined()) << what << ": undefined, expected shape " << expected.shape().str();
  ASSERT_TRUE(expected.defined()) << what << ": nothing to compare with";
  ASSERT_EQ(actual.shape().str(), expected.shape().str()) << what;
  ASSERT_EQ(name(actual.dtype()), name(expected.dtype())) << what;
  const std::vector<double> a = actual.to_vector<double>();
  const std::vector<double> e = expected.to_vector<double>();
  // The worst element is the one that exceeds its tolerance most; a lone NaN or infinity is infinitely far.
  double worst = 0;
  size_t at = 0, wrong = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == e[i] || (std::isnan(a[i]) && std::isnan(e[i]))) continue;
    const double excess = std::abs(a[i] - e[i]) / (atol + rtol * std::abs(e[i]));
    if (excess <= 1 && std::isfinite(e[i])) continue;
    ++wrong;
    const double rank =
        std::isfinite(excess) && std::isfinite(e[i]) ? excess : std::numeric_limits<double>::infinity();
    if (rank > worst) {
      worst = rank;
      at = i;
    }
  }
  if (wrong == 0) return;
  ADD_FAILURE() << fmt::format(
      "{}: {} of {} elements are off; the worst, at {}: {:.17g}, expected {:.17g} (off by {:.3g}, {:.3g} "
      "times what rtol {:g} and "
      "atol {:g} allow)",
      what, wrong, a.size(), position(actual.shape(), static_cast<int64_t>(at)), a[at], e[at],
      std::abs(a[at] - e[at]), worst, rtol, atol);
}

void expect_golden(const GoldenCase& golden, const Tensor& out, double rtol, double atol) {
  expect_close(out, golden.out, rtol, atol, golden.name + ": out");
  const bool any =
      std::any_of(golden.grads.begin(), golden.grads.end(), [](const Tensor& g) { return g.defined(); });
  if (!any || golden.degenerate() || !out.defined() || out.shape() != golden.out.shape()) return;
  for (Tensor x : golden.inputs) {
    if (x.requires_grad()) x.set_grad({});
  }
  backward(out, golden.grad_out);
  for (size_t i = 0; i < golden.inputs.size(); ++i) {
    if (!golden.grads[i].defined()) continue;
    expect_close(golden.inputs[i].grad(), golden.grads[i], rtol, atol,
                 fmt::format("{}: gradient of {}", golden.name, golden.roles[i]));
  }
}

}  // namespace tapehead
