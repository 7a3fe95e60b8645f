// One row of cross entropy's row pass: its z, its sums, and what follows
// from them. Device code; a block shares a row, and octet o of it is thread
// o % blockDim.x's. The formulas stand at Backend::cross_entropy_rows.
#pragma once

#include <cmath>
#include <limits>

#include "tapehead/backends/backend.h"
#include "tapehead/backends/cuda/octet.h"
#include "tapehead/backends/row_sums.h"

namespace tapehead {

/// CrossEntropyRows as a kernel's parameter.
struct RowPass {
  int64_t R = 0, C = 0;
  Rows logits, bias, probability, class_weight;
  const int64_t* target = nullptr;
  const double *row_scale = nullptr, *z_row_scale = nullptr;
  double smoothing = 0, logit_scale = 1, softcap = 0, z_loss = 0, unit = 1;
  GradientFilter filter;
  uint64_t filter_seed = 0, filter_first = 0;
  const int64_t* filter_row = nullptr;
  int64_t staged = 0;  // octets of a row that shared memory keeps from the first reading to the second

  double *loss = nullptr, *lse = nullptr, *target_logprob = nullptr, *entropy = nullptr;
  int64_t* correct = nullptr;
  MutableRows gradient, target_gradient;
  double *own_gradient = nullptr, *filtered_mass = nullptr;
  int64_t* sparse_count = nullptr;
  int32_t* sparse_index = nullptr;
  void* sparse_value = nullptr;  // of the arithmetic's type
  int64_t capacity = 0;          // of a row of those
};

/// A row. kPlain says that z is the logits, and that no class but the target has a factor.
template <class T, bool kPlain>
struct Row {
  using W = wide_t<T>;
  static constexpr W kLowest = -std::numeric_limits<W>::infinity();

  const RowPass& pass;
  int64_t r;
  const T* logits;
  T* stage;
  Octets octets;
  int64_t target;  // -1 with probabilities

  __device__ Row(const RowPass& all, int64_t row, T* shared)
      : pass(all),
        r(row),
        logits(static_cast<const T*>(all.logits.data) + row * all.logits.stride),
        stage(shared),
        octets(logits, all.C),
        target(all.target ? all.target[row] : -1) {}

  /// Whether classes other than the target have a factor before -log p_c.
  __device__ bool has_factors() const { return !kPlain && (pass.probability || pass.smoothing > 0); }
  /// The target's own factor, beside what all classes have.
  __device__ double target_factor() const {
    if (target < 0) return 0;
    return (1 - pass.smoothing) *
           (pass.class_weight ? static_cast<double>(pass.class_weight.at<W>(0, target)) : 1.0);
  }

  /// An octet of logits as given, from memory, or as save() left it.
  __device__ void read(int64_t octet, W (&x)[kOctet]) const { octets.load(logits, octet, kLowest, x); }
  __device__ void save(int64_t octet, const W (&x)[kOctet]) const {
    if (octet < pass.staged) store_aligned<kOctet>(stage + octet * kOctet, x);
  }
  __device__ void read_again(int64_t octet, W (&x)[kOctet]) const {
    if (octet < pass.staged) {
      load_aligned<kOctet>(stage + octet * kOctet, x);
    } else {
      read(octet, x);
    }
  }

  /// Logits become z, -inf outside of the row: padding that adds nothing to any sum.
  __device__ void make_z(int64_t octet, W (&x)[kOctet]) const {
    if constexpr (kPlain) return;
    if (pass.bias) {
      W b[kOctet];
      pass.bias.load(0, octets, octet, b);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) x[i] += b[i];
    }
    scale_and_cap(x);
    const int64_t begin = octets.begin(octet);
    if (begin >= 0 && begin + kOctet <= octets.n) return;
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      if (begin + i < 0 || begin + i >= octets.n) x[i] = kLowest;
    }
  }

  __device__ W z_at(int64_t c) const {
    W x[1] = {static_cast<W>(widen(logits[c]))};
    if constexpr (!kPlain) {
      if (pass.bias) x[0] += pass.bias.at<W>(0, c);
      scale_and_cap(x);
    }
    return x[0];
  }

  /// The factors a_c = w_c · ((1 - e) · q_c + e / C) of an octet, 0 outside.
  __device__ void factors(int64_t octet, W (&a)[kOctet]) const {
    const W uniform = uniform_factor(), kept = static_cast<W>(1 - pass.smoothing);
    W w[kOctet];
    if (pass.probability) pass.probability.load(r, octets, octet, a);
    if (pass.class_weight) pass.class_weight.load(0, octets, octet, w);
    const int64_t begin = octets.begin(octet);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      a[i] = pass.probability ? kept * a[i] + uniform : uniform;
      if (pass.class_weight) a[i] *= w[i];
      if (begin + i < 0 || begin + i >= octets.n) a[i] = 0;
    }
  }
  __device__ W factor(int64_t c) const {
    W a = uniform_factor();
    if (pass.probability) a += static_cast<W>(1 - pass.smoothing) * pass.probability.at<W>(r, c);
    return pass.class_weight ? a * pass.class_weight.at<W>(0, c) : a;
  }

 private:
  __device__ W uniform_factor() const {
    return static_cast<W>(pass.smoothing / static_cast<double>(octets.n));
  }

  template <int N>
  __device__ void scale_and_cap(W (&x)[N]) const {
    const W scale = static_cast<W>(pass.logit_scale), cap = static_cast<W>(pass.softcap),
            inverse = static_cast<W>(1 / pass.softcap);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (pass.logit_scale != 1) x[i] *= scale;
      if (pass.softcap > 0) x[i] = cap * std::tanh(x[i] * inverse);
    }
  }
};

/// Adds an octet, without its target class, against the present reference.
template <class W>
__device__ void add_octet(RowSums<W>& sums, const W (&z)[kOctet], bool entropy) {
  W sum = 0, dot = 0;
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    const W e = std::exp(z[i] - sums.reference);
    sum += e;
    if (entropy && e != 0) dot += e * (z[i] - sums.reference);
  }
  sums.others += static_cast<double>(sum);
  if (entropy) sums.exp_dot += static_cast<double>(dot);
}

template <class W>
__device__ void add_factors(RowSums<W>& sums, const W (&a)[kOctet], const W (&z)[kOctet]) {
  W sum = 0, dot = 0;
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    sum += a[i];
    if (a[i] != 0) dot += a[i] * (z[i] - sums.reference);
  }
  sums.factor_sum += static_cast<double>(sum);
  sums.factor_dot += static_cast<double>(dot);
}

struct Smaller {
  template <class V>
  __device__ V operator()(V a, V b) const {
    return b < a ? b : a;
  }
};

/// Element `position - begin` of x = value, where that is one: without an index that is not known when
/// compiling, which would move x from registers to memory.
template <class W>
__device__ inline void set_at(W (&x)[kOctet], int64_t position, int64_t begin, W value) {
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    if (begin + i == position) x[i] = value;
  }
}

/// The block's first reading. A warp's threads share a reference:
/// it seldom moves, and moving it takes an exponential in f64.
template <class T, bool kPlain>
__device__ RowSums<wide_t<T>> read_row(const Row<T, kPlain>& row) {
  using W = wide_t<T>;
  constexpr W kLowest = Row<T, kPlain>::kLowest;
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  const bool entropy = !kPlain && row.pass.entropy, factors = row.has_factors();
  const int64_t count = row.octets.count();

  RowSums<W> sums;
  W largest = kLowest;          // of the warp
  W own_largest = kLowest;      // of this thread,
  int64_t own_first = kNone;    // and where
  W x[kOctet] = {}, z[kOctet];  // x is on its way while z is worked on
  int64_t o = threadIdx.x;
  if (o < count) row.read(o, x);
  for (int64_t first = o / kWarp * kWarp; first < count; first += blockDim.x, o += blockDim.x) {
    const bool mine = o < count;
    const int64_t begin = row.octets.begin(o);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) z[i] = mine ? x[i] : kLowest;
    if (o + blockDim.x < count) row.read(o + blockDim.x, x);
    if (mine) {
      row.save(o, z);
      row.make_z(o, z);
    }

    W m = kLowest;
#pragma unroll
    for (int i = 0; i < kOctet; ++i) m = z[i] > m ? z[i] : m;
    if (m > own_largest) {
      own_largest = m;
#pragma unroll
      for (int i = kOctet - 1; i >= 0; --i) {
        if (z[i] == m) own_first = begin + i;
      }
    }
    m = warp_reduce(m, Larger());
    if (m > largest) {
      if (largest > kLowest) sums.move_reference(m);  // else the sums are of nothing yet
      sums.reference = largest = m;
    }
    if (factors && mine) {
      W a[kOctet];
      row.factors(o, a);
      add_factors(sums, a, z);
    }
    set_at(z, row.target, begin, kLowest);
    add_octet(sums, z, entropy);
  }

  const W of_row = block_max(largest);
  if (largest > kLowest && of_row > largest) sums.move_reference(of_row);
  sums.reference = of_row > kLowest ? of_row : W{0};
  sums.others = block_sum(sums.others);
  if (factors) {
    sums.factor_sum = block_sum(sums.factor_sum);
    sums.factor_dot = block_sum(sums.factor_dot);
  }
  if (entropy) sums.exp_dot = block_sum(sums.exp_dot);
  if (row.pass.correct) {
    own_first = block_reduce(own_largest == of_row ? own_first : kNone, kNone, Smaller());
    sums.first_largest = own_first == kNone ? 0 : own_first;
  }
  if (row.target >= 0) sums.add_target(row.z_at(row.target));
  __syncthreads();  // the gradient may overwrite z_t
  return sums;
}

}  // namespace tapehead
