// Layer normalisation (Ba, Kiros and Hinton, 2016), and the root mean square alone
// (Zhang and Sennrich, 2019).
#pragma once

#include "tapehead/core/tape.h"

namespace tapehead {

/// (x - mean) / sqrt(variance + epsilon) · weight + bias over the last axis: x (..., F); weight and bias (F),
/// each may be undefined. The variance is that of the F elements themselves (divided by F, not F - 1). One
/// floating dtype; statistics are summed in f64. Throws ValueError on shapes, on different devices and on a
/// negative or NaN epsilon, TypeError on integers and on dtypes that differ.
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double epsilon = 1e-5);

/// x / sqrt(mean of x² + epsilon) · weight over the last axis (torch.nn.functional.rms_norm): x (..., F);
/// weight (F) or undefined. Dtypes and errors as for layer_norm.
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double epsilon = 1e-6);

}  // namespace tapehead
