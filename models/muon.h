// Muon: momentum whose direction is made orthogonal, for the matrices inside a model; AdamW for the rest.
#pragma once

#include "tapehead/models/optimizer.h"

namespace tapehead {

/// Five steps of the Newton-Schulz iteration X <- a·X + (b·A + c·A²)·X with A = X·Xᵀ and (a, b, c) =
/// (3.4445, -4.7750, 2.0315), from g / max(‖g‖, 1e-7): g's singular values become about 1. g (M, N)
/// f32 or f64 -> (M, N), fresh; not recorded. In g's arithmetic, where PyTorch rounds to bf16.
Tensor orthogonalize(const Tensor& g);

/// torch.optim.Muon's numbers with adjust_lr_fn = "match_rms_adamw" (Jordan et al.,
/// "Muon", 2024; Liu et al., "Muon is scalable for LLM training", 2025), for the matrices
/// of numbered layers; AdamW's for all other parameters: embeddings, head, biases, norms.
/// A matrix's step has the size of AdamW's, so one learning rate serves both:
///   b <- b + (1 - momentum)·(g - b);   p <- p·(1 - lr·decay) - lr·0.2·sqrt(max(M, N))·orthogonalize(u),
/// u = g + momentum·(b - g) if nesterov, else b.
/// State: momentum of the matrices; first, second of the rest.
class MuonOptimizer final : public AdamWOptimizer {
 public:
  explicit MuonOptimizer(ParameterList parameters, const OptimizerOptions& options = {});

  /// Whether a parameter is a matrix of a numbered layer, as in transformer.h.3.attn.c_attn.weight.
  static bool is_layer_matrix(const std::pair<std::string, Tensor>& parameter);

 private:
  void update(const Step& step) override;
  std::vector<std::pair<std::string, const Tensors*>> kept() const override;

  Tensors momentum_;
};

}  // namespace tapehead
