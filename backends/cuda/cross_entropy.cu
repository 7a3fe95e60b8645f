// The row pass of cross entropy: one kernel, a block a row.
//
// A row is read once for its loss, with a running maximum. What of it fits stays in shared memory for the
// gradient, which may overwrite it; the rest is read again, most of it from the second-level cache. Sums over
// classes run in the arithmetic's type inside an octet and in f64 across.
#include "tapehead/backends/cuda/cross_entropy_row.h"
#include "tapehead/backends/cuda/cuda_backend.h"
#include "tapehead/backends/cuda/gradient_filter.h"

namespace tapehead {
namespace {

// As many as have the registers they need: a plain row's loop needs few, f64 takes two for each number.
template <class T, bool kPlain>
constexpr unsigned kRowThreads = (kPlain ? 1024 : 512) / (sizeof(T) == 8 ? 2 : 1);

// Where the gradient is narrower than the logits that it overwrites, the octets that a block writes at once
// cover octets that it has read before or at the same time: a barrier parts the two.
template <class T, bool kPlain>
__device__ void write_gradient(const Row<T, kPlain>& row, const RowSums<wide_t<T>>& sums,
                               const GradientFactors& f, const RowFilter<wide_t<T>>& filter) {
  using W = wide_t<T>;
  const RowPass& pass = row.pass;
  const bool factors = row.has_factors();
  const W of_p = static_cast<W>(f.of_p / sums.exp_sum()), of_factor = static_cast<W>(-f.scale),
          of_z = static_cast<W>(pass.logit_scale / pass.unit),
          inverse_cap = !kPlain && pass.softcap > 0 ? static_cast<W>(1 / pass.softcap) : W{0};
  const bool narrows =
      pass.gradient.data == pass.logits.data && size_of(pass.gradient.dtype) < size_of(dtype_of<T>());
  double below = 0;
  for (int64_t first = 0; first < row.octets.count(); first += blockDim.x) {
    const int64_t o = first + threadIdx.x, begin = row.octets.begin(o);
    const bool mine = o < row.octets.count();
    W g[kOctet];
    if (mine) {
      W z[kOctet];
      row.read_again(o, z);
      row.make_z(o, z);
      // Class probabilities have the target -1, and the first octet may begin before the row.
      const bool has_target = row.target >= 0 && begin <= row.target && row.target < begin + kOctet;
#pragma unroll
      for (int i = 0; i < kOctet; ++i) g[i] = std::exp(z[i] - sums.reference);
      if (!kPlain && filter) {
        if (has_target) set_at(g, row.target, begin, W{0});
        unsigned kept;
        W sum = 0;
        filter.choose(begin, g, kept, sum);
        below += static_cast<double>(sum);
      }
#pragma unroll
      for (int i = 0; i < kOctet; ++i) g[i] *= of_p;
      if (factors) {
        W a[kOctet];
        row.factors(o, a);
#pragma unroll
        for (int i = 0; i < kOctet; ++i) g[i] += of_factor * a[i];
      }
      if (has_target) {
        const double own = factors ? static_cast<double>(row.factor(row.target)) : 0;
        set_at(g, row.target, begin, static_cast<W>(f.at_target(sums, own)));
      }
      if (!kPlain && pass.softcap > 0) {  // softcap_slope(), by a factor in the place of a division
#pragma unroll
        for (int i = 0; i < kOctet; ++i) g[i] *= 1 - z[i] * inverse_cap * (z[i] * inverse_cap);
      }
#pragma unroll
      for (int i = 0; i < kOctet; ++i) g[i] *= of_z;
      if (has_target && pass.own_gradient) {
#pragma unroll
        for (int i = 0; i < kOctet; ++i) {
          if (begin + i == row.target) pass.own_gradient[row.r] = pass.unit * static_cast<double>(g[i]);
        }
        set_at(g, row.target, begin, W{0});
      }
    }
    if (narrows) __syncthreads();
    if (mine) pass.gradient.store(row.r, row.octets, o, g);
  }
  if (pass.filtered_mass) {
    below = block_sum(below);
    if (threadIdx.x == 0) pass.filtered_mass[row.r] = below / sums.exp_sum();
  }
}

// The entries that the filter leaves, without the part
// -scale · a_c that all classes have: by class, the target's last.
template <class T, bool kPlain>
__device__ void write_sparse_gradient(const Row<T, kPlain>& row, const RowSums<wide_t<T>>& sums,
                                      const GradientFactors& f, const RowFilter<wide_t<T>>& filter) {
  using W = wide_t<T>;
  const RowPass& pass = row.pass;
  int32_t* index = pass.sparse_index + row.r * pass.capacity;
  W* value = static_cast<W*>(pass.sparse_value) + row.r * pass.capacity;
  const W of_p = static_cast<W>(f.of_p / sums.exp_sum() * pass.logit_scale),
          cap = static_cast<W>(pass.softcap);
  double below = 0;
  int64_t written = 0;
  for (int64_t first = 0; first < row.octets.count(); first += blockDim.x) {
    const int64_t o = first + threadIdx.x, begin = row.octets.begin(o);
    W z[kOctet], e[kOctet];
    unsigned kept = 0;
    if (o < row.octets.count()) {
      row.read_again(o, z);
      row.make_z(o, z);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) e[i] = std::exp(z[i] - sums.reference);
      set_at(e, row.target, begin, W{0});
      W sum = 0;
      filter.choose(begin, e, kept, sum);
      below += static_cast<double>(sum);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) {
        const int64_t c = begin + i;
        if (c < 0 || c >= row.octets.n || c == row.target) kept &= ~(1u << i);
      }
    }
    int total;
    int64_t position = written + block_prefix(__popc(kept), total);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      if (!(kept >> i & 1)) continue;
      if (position < pass.capacity) {
        index[position] = static_cast<int32_t>(begin + i);
        value[position] = of_p * e[i] * softcap_slope(z[i], cap);
      }
      ++position;
    }
    written += total;
  }
  if (threadIdx.x == 0) {
    if (written < pass.capacity) {
      index[written] = static_cast<int32_t>(row.target);
      value[written] =
          static_cast<W>(f.at_target(sums, 0) * pass.logit_scale) * softcap_slope(sums.z_target, cap);
    }
    pass.sparse_count[row.r] = written < pass.capacity ? written + 1 : pass.capacity + 1;
  }
  below = block_sum(below);
  if (threadIdx.x == 0 && pass.filtered_mass) pass.filtered_mass[row.r] = below / sums.exp_sum();
}

// d loss / d q_c = -scale · (1 - e) · w_c · log p_c.
template <class T, bool kPlain>
__device__ void write_target_gradient(const Row<T, kPlain>& row, const RowSums<wide_t<T>>& sums,
                                      double scale) {
  using W = wide_t<T>;
  const RowPass& pass = row.pass;
  const double factor = -scale * (1 - pass.smoothing), lse = sums.lse();
  for (int64_t o = threadIdx.x; o < row.octets.count(); o += blockDim.x) {
    W z[kOctet], w[kOctet];
    row.read_again(o, z);
    row.make_z(o, z);
    if (pass.class_weight) pass.class_weight.load(0, row.octets, o, w);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      const double weight = pass.class_weight ? static_cast<double>(w[i]) : 1;
      z[i] = static_cast<W>(factor * weight * (static_cast<double>(z[i]) - lse));
    }
    pass.target_gradient.store(row.r, row.octets, o, z);
  }
}

// A row whose scales are 0: its logits are not looked at.
template <class T, bool kPlain>
__device__ void write_zeros(const Row<T, kPlain>& row) {
  const RowPass& pass = row.pass;
  const wide_t<T> zeros[kOctet] = {};
  for (int64_t o = threadIdx.x; o < row.octets.count(); o += blockDim.x) {
    if (pass.gradient) pass.gradient.store(row.r, row.octets, o, zeros);
    if (pass.target_gradient) pass.target_gradient.store(row.r, row.octets, o, zeros);
  }
  if (threadIdx.x != 0) return;
  if (pass.loss) pass.loss[row.r] = 0;
  if (pass.own_gradient) pass.own_gradient[row.r] = 0;
  if (pass.filtered_mass) pass.filtered_mass[row.r] = 0;
  if (pass.sparse_count) pass.sparse_count[row.r] = 0;
}

template <class T, bool kPlain>
__global__ void __launch_bounds__(kRowThreads<T, kPlain>, 1) cross_entropy_kernel(RowPass pass) {
  using W = wide_t<T>;
  for_each_row(pass.R, [&](int64_t r) {
    const Row<T, kPlain> row(pass, r, dynamic_shared<T>());
    const double scale = pass.row_scale[r],
                 z_scale = pass.z_row_scale ? pass.z_loss * pass.z_row_scale[r] : 0;
    if (scale == 0 && z_scale == 0) return write_zeros(row);

    const RowSums<W> sums = read_row(row);
    if (threadIdx.x == 0) {
      const RowStatistics of_row(sums);
      if (pass.loss) pass.loss[r] = of_row.loss(sums, row.target_factor(), scale, z_scale);
      if (pass.lse) pass.lse[r] = of_row.lse();
      if (pass.target_logprob) pass.target_logprob[r] = of_row.log_p_target;
      if (!kPlain && pass.entropy) pass.entropy[r] = of_row.entropy(sums);
      if (pass.correct) pass.correct[r] = sums.first_largest == row.target;
    }
    if (!kPlain && pass.target_gradient) write_target_gradient(row, sums, scale);
    if (!pass.gradient && !pass.sparse_count) return;

    const GradientFactors f(sums, row.target_factor(), scale, z_scale);
    RowFilter<W> filter;
    if (!kPlain) {
      filter.kind = pass.filter.kind;
      filter.level = static_cast<W>(pass.filter.level * sums.exp_sum());
      filter.seed = pass.filter_seed;
      filter.first = pass.filter_first + static_cast<uint64_t>((pass.filter_row ? pass.filter_row[r] : r) *
                                                               filter_blocks(pass.C));
      if (pass.sparse_count) return write_sparse_gradient(row, sums, f, filter);
    }
    write_gradient(row, sums, f, filter);
  });
}

template <class T, bool kPlain>
void launch_rows(Stream& stream, RowPass pass) {
  constexpr size_t kOther = 4 << 10;  // shared memory that the kernel declares itself, and what CUDA takes
  const int64_t octets = pass.C / kOctet + 2, bytes = kOctet * sizeof(T);
  if (pass.gradient || pass.target_gradient || pass.sparse_count) {
    const int64_t fit = static_cast<int64_t>(stream.most_shared_bytes() - kOther) / bytes;
    pass.staged = std::min(octets, fit);
  }
  const unsigned threads = row_threads(pass.C, kRowThreads<T, kPlain>);
  stream.launch("cross_entropy_rows", grid_of_rows(pass.R, threads, static_cast<size_t>(pass.staged * bytes)),
                cross_entropy_kernel<T, kPlain>, pass);
}

}  // namespace

void CudaBackend::cross_entropy_rows(const CrossEntropyRows& rows) {
  if (rows.logits.numel() == 0) return;
  const auto read = []<class T>(const Tensor& x, std::type_identity<T>) {
    return x.defined() ? x.data<T>() : nullptr;
  };
  const auto write = []<class T>(Tensor x, std::type_identity<T>) {
    return x.defined() ? x.mutable_data<T>() : nullptr;
  };
  constexpr std::type_identity<double> f64;
  constexpr std::type_identity<int64_t> i64;
  RowPass pass;
  pass.R = rows.logits.size(0);
  pass.C = rows.logits.size(1);
  pass.logits = Rows(rows.logits);
  pass.bias = Rows(rows.bias);
  pass.probability = Rows(rows.target_probability);
  pass.class_weight = Rows(rows.class_weight);
  pass.target = read(rows.target_index, i64);
  pass.row_scale = read(rows.row_scale, f64);
  if (rows.z_loss > 0) pass.z_row_scale = read(rows.z_row_scale, f64);
  pass.smoothing = rows.label_smoothing;
  pass.logit_scale = rows.logit_scale;
  pass.softcap = rows.softcap;
  pass.z_loss = rows.z_loss;
  pass.unit = rows.gradient_unit;
  pass.filter = rows.filter;
  pass.filter_seed = rows.filter_seed;
  pass.filter_first = rows.filter_first;
  pass.filter_row = read(rows.filter_row, i64);
  pass.loss = write(rows.loss, f64);
  pass.lse = write(rows.lse, f64);
  pass.target_logprob = write(rows.target_logprob, f64);
  pass.entropy = write(rows.entropy, f64);
  pass.correct = write(rows.correct, i64);
  pass.gradient = MutableRows(rows.gradient);
  pass.target_gradient = MutableRows(rows.target_gradient);
  pass.own_gradient = write(rows.own_gradient, f64);
  pass.filtered_mass = write(rows.filtered_mass, f64);
  if (rows.sparse_gradient.count.defined()) {
    pass.sparse_count = write(rows.sparse_gradient.count, i64);
    pass.sparse_index = write(rows.sparse_gradient.index, std::type_identity<int32_t>());
    pass.sparse_value = Tensor(rows.sparse_gradient.value).mutable_raw_data();
    pass.capacity = rows.sparse_gradient.index.size(1);
  }
  const bool plain = !pass.bias && !pass.probability && pass.smoothing == 0 && pass.logit_scale == 1 &&
                     pass.softcap <= 0 && pass.filter.kind == GradientFilter::none && !pass.entropy &&
                     !pass.sparse_count && !pass.target_gradient;
  visit_floating(rows.logits.dtype(), "cross_entropy_rows", [&]<class T>(std::type_identity<T>) {
    plain ? launch_rows<T, true>(stream_, pass) : launch_rows<T, false>(stream_, pass);
  });
}

}  // namespace tapehead
