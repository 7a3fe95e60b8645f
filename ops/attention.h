// Scaled dot-product attention (Vaswani et al., "Attention is all you need", 2017). No T×T matrix is ever
// held: memory grows linearly with T, in forward and backward.
#pragma once

#include <optional>

#include "tapehead/core/tape.h"

namespace tapehead {

/// softmax(scale · q·kᵀ)·v over positions: q (B, H, T, D), k and v (B, G, S, D) -> (B, H, T, D).
///
/// G divides H, and query head h reads head h / (H / G) of k and v (grouped-query attention; Ainslie et
/// al., 2023). S >= T, and query t stands at position S - T + t: S is larger where keys and values of
/// earlier positions were kept. A query sees the positions up to its own if `causal`, else all; where
/// `first_seen` (B, T) i64 is given, none before first_seen[b, t], which is at most its own: so documents
/// in one row do not see each other.
///
/// `scale` is 1 / sqrt(D) unless given. Inputs may have any strides, and are read as they are if dense along
/// D. The result is laid out as (B, T, H, D): transpose(y, 1, 2) is dense, and joining the heads costs
/// nothing. Throws ValueError on shapes, on a first_seen out of range and on tensors of different devices,
/// TypeError on dtypes that differ or are integers.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal = true,
                                    std::optional<double> scale = {}, const Tensor& first_seen = {});

/// The same on GPT-2's packed projections: qkv (B, T, 3·F) holds queries, keys and values, each of n_head
/// heads one after another -> (B, T, F), heads joined. Causal, scaled by 1 / sqrt(F / n_head). Nothing is
/// split or copied, either way. Throws ValueError unless n_head >= 1 divides F, on first_seen and different
/// devices, TypeError for integers.
Tensor causal_self_attention(const Tensor& qkv, int64_t n_head, const Tensor& first_seen = {});

}  // namespace tapehead
