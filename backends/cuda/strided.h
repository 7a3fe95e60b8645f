// Where the elements of strided operands stand: computed on the host once, looked up in kernels.
#pragma once

#include <array>
#include <cstdint>

#include "tapehead/backends/cuda/launch.h"
#include "tapehead/core/tensor.h"

namespace tapehead {

/// The elements of one shape in row-major order, for K operands with strides of their own. Passed to kernels
/// by value. Dimensions are merged where all operands allow it.
template <int K>
struct StridedIndex {
  static constexpr int kMostDims = 16;  // after merging

  struct Offsets {
    int64_t at[K];
    __host__ __device__ int64_t operator[](int k) const { return at[k]; }
  };

  int64_t count = 1;
  int dims = 1;
  bool small = false;              // whether 32 bits suffice to divide
  int64_t sizes[kMostDims] = {1};  // innermost first
  int64_t steps[kMostDims][K] = {};

  /// Strides as broadcast_strides() gives them. Throws ValueError beyond kMostDims.
  StridedIndex(const Shape& shape, const std::array<Strides, K>& strides) {
    int n = 0;
    for (int64_t axis = shape.dim() - 1; axis >= 0; --axis) {
      const int64_t size = shape[axis];
      count *= size;
      if (size == 1) continue;
      bool joins = n > 0;
      for (int k = 0; joins && k < K; ++k)
        joins = strides[static_cast<size_t>(k)][static_cast<size_t>(axis)] == steps[n - 1][k] * sizes[n - 1];
      if (joins) {
        sizes[n - 1] *= size;
        continue;
      }
      check<ValueError>(n < kMostDims,
                        "shape {}: cuda kernels take at most {} dimensions that cannot be merged", shape,
                        kMostDims);
      sizes[n] = size;
      for (int k = 0; k < K; ++k) steps[n][k] = strides[static_cast<size_t>(k)][static_cast<size_t>(axis)];
      ++n;
    }
    if (n > 0) dims = n;
    small = count <= std::numeric_limits<int32_t>::max();
  }

  /// Whether operand k is one dense run.
  bool is_dense(int k) const { return dims == 1 && (steps[0][k] == 1 || sizes[0] == 1); }

  /// Where element i stands, in elements from each operand's first.
  __host__ __device__ Offsets operator()(int64_t i) const {
    return small ? offsets(static_cast<uint32_t>(i)) : offsets(static_cast<uint64_t>(i));
  }

 private:
  template <class I>
  __host__ __device__ Offsets offsets(I i) const {
    Offsets o = {};
    for (int d = 0; d < dims; ++d) {
      I index = i;
      if (d + 1 < dims) {  // the outermost needs no division
        const I size = static_cast<I>(sizes[d]);
        i = index / size;
        index -= i * size;
      }
      for (int k = 0; k < K; ++k) o.at[k] += static_cast<int64_t>(index) * steps[d][k];
    }
    return o;
  }
};

}  // namespace tapehead
