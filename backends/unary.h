// The functions of one element, by name, for host and device. Their formulas: ops/elementwise.h.
#pragma once

#include <cstdint>
#include <type_traits>

namespace tapehead {

/// A new one has a line in with_constant, takes its derivative from x unless derivative_uses_result names it,
/// and has its formula and derivative in backends/cpu/elementwise.cc and backends/cuda/elementwise.cu.
enum class Unary : uint8_t { neg, exp, log, tanh, sqrt, relu, gelu, gelu_tanh, silu };

/// Whether the derivative of `op` is computed from its result, y; otherwise from its input, x.
constexpr bool derivative_uses_result(Unary op) {
  return op == Unary::exp || op == Unary::tanh || op == Unary::sqrt || op == Unary::relu;
}

/// Calls f with `op` as a constant: its type's `value`. Constexpr is what lets code of a device call it.
template <class F>
constexpr void with_constant(Unary op, F f) {
  switch (op) {
    case Unary::neg: return f(std::integral_constant<Unary, Unary::neg>());
    case Unary::exp: return f(std::integral_constant<Unary, Unary::exp>());
    case Unary::log: return f(std::integral_constant<Unary, Unary::log>());
    case Unary::tanh: return f(std::integral_constant<Unary, Unary::tanh>());
    case Unary::sqrt: return f(std::integral_constant<Unary, Unary::sqrt>());
    case Unary::relu: return f(std::integral_constant<Unary, Unary::relu>());
    case Unary::gelu: return f(std::integral_constant<Unary, Unary::gelu>());
    case Unary::gelu_tanh: return f(std::integral_constant<Unary, Unary::gelu_tanh>());
    case Unary::silu: return f(std::integral_constant<Unary, Unary::silu>());
  }
}

}  // namespace tapehead
