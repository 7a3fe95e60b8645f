// The numbers in the activations' formulas (ops/elementwise.h), for host and device.
#pragma once

namespace tapehead {

/// gelu_tanh(x) = x · σ(2u), since (1 + tanh u) / 2 = σ(2u); 2u = kGeluScale · (x + kGeluCubic · x³).
constexpr double kGeluScale = 1.5957691216057307118;  // 2 · sqrt(2/π)
constexpr double kGeluCubic = 0.044715;

/// The normal density at 0, 1 / sqrt(2π).
constexpr double kNormalDensity = 0.39894228040143267794;

/// Derivatives are those at x clamped to ± these: beyond, they are 0 and 1 in every dtype, also where a power
/// of x would overflow.
constexpr double kGeluBound = 40, kGeluTanhBound = 32, kSiluBound = 800;

}  // namespace tapehead
