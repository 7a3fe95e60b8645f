// What a training step is measured against: its matrix products alone, at the rate of a large one.
#pragma once

#include <vector>

#include "tapehead/core/tensor.h"
#include "tapehead/models/language_model.h"

namespace tapehead {

/// Weights that every token is multiplied with: the matrices of all blocks, and the head's.
int64_t multiplied_weights(const LanguageModel& model);

/// Floating-point operations of the matrix products of one step on `rows` contexts of n_positions tokens.
/// Backward multiplies twice for each product of forward: for both factors' gradients. Of attention's T×T
/// products, q·kᵀ and the weights' with v, the causal half counts.
double product_flops(const LanguageModel& model, int64_t rows);

/// A product on the default device, large enough for the full speed of the library behind it: the rate that
/// others are measured against. For 16 bits it is the faster one of theirs and of f32's: not all processors
/// are better at the former.
class ReferenceProduct {
 public:
  /// (1024, 1024) times (1024, columns).
  explicit ReferenceProduct(DType dtype, int64_t columns = 8192);

  /// Wall time of one product, into memory that is there already.
  double seconds() const;
  /// Floating-point operations of one product.
  double flops() const;

 private:
  struct Operands {
    Tensor a, b, y;
  };
  std::vector<Operands> by_dtype_;
};

}  // namespace tapehead
