// Where devices differ in what is fastest or smallest. Results do not depend on it, but for their rounding.
// No part of Backend: plans are made for devices, too, that this build does not have.
#pragma once

#include "tapehead/core/device.h"
#include "tapehead/core/dtype.h"

namespace tapehead {

/// Whether a call's work is done when the call returns, so that the host reads what it wrote at no cost.
constexpr bool is_synchronous(Device device) { return device.kind == Device::cpu; }

/// Where the vocabulary head's ways of going cross over, for inputs of one dtype on one device.
struct Tuning {
  /// Rows of a chunk from which on its products gain little.
  int64_t throughput_rows;
  /// A product over what a gradient filter leaves of a row (SparseRows) takes as long as the dense one where
  /// it leaves one class in so many.
  int64_t classes_per_entry;
  /// Whether "auto" spends memory on buffers as wide as the sums (LinearCrossEntropyOptions): torch's rule.
  bool wide_buffers;
};

/// CPU, measured on two cores with AVX-512:
///  - in f32, heads of 256 rows a chunk were as fast as with 512 at 768 and 2048 features, and 1.1 times as
///    fast at 128 and 256; with 16 bits, where each chunk widens the weight, 512 rows were 1.06 to 1.18 times
///    as fast as 256;
///  - in f32, sparse and dense products were even at one class in 11 (768 features, 50257 classes) and
///    in 16 (256, 8192), when the dense ones were OpenBLAS's, which took a tenth longer. Other dtypes are
///    taken to be alike.
///
/// CUDA, not measured, from an H100's data sheet: while a byte comes from memory, its products do some 125
/// multiply-adds in 16 bits and 10 in f32.
///  - A chunk reads the weight twice, and reads and writes the weight gradient's sums in f32. That takes a
///    quarter of its products' time with 2048 rows of 16 bits, a tenth with 512 of f32, and overlaps with it.
///  - An entry reads a row of the weight and does little with it, from the second-level cache, twice as fast
///    as memory. Meanwhile the dense product is through some 128 classes in 16 bits, 20 in f32.
/// f64 is for checks: as on the CPU.
constexpr Tuning tuning(Device device, DType dtype) {
  if (device.kind == Device::cuda && is_half(dtype))
    return {.throughput_rows = 2048, .classes_per_entry = 128, .wide_buffers = false};
  if (device.kind == Device::cuda && dtype == DType::f32)
    return {.throughput_rows = 512, .classes_per_entry = 20, .wide_buffers = false};
  if (dtype == DType::f32) return {.throughput_rows = 256, .classes_per_entry = 12, .wide_buffers = false};
  return {.throughput_rows = 512, .classes_per_entry = 12, .wide_buffers = is_half(dtype)};
}

}  // namespace tapehead
