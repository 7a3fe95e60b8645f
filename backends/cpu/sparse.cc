// Products with a sparse matrix, and with its transpose: sums of scaled rows.
//
// Both directions come down to one loop: a row of sums that stays in the first-level cache, to which rows
// from everywhere in memory are added, four at once, while the next four are on their way.
#include <algorithm>

#include "tapehead/backends/cpu/convert.h"
#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/backends/cpu/workspace.h"
#include "tapehead/core/parallel.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/sparse.cc"
#include "tapehead/backends/cpu/simd.h"
#include <hwy/foreach_target.h>
#include "tapehead/backends/cpu/simd_math-inl.h"
// clang-format on

#include <hwy/cache_control.h>

HWY_BEFORE_NAMESPACE();
namespace tapehead::HWY_NAMESPACE {

constexpr int64_t kTogether = 4;

// Rows of F elements of any floating dtype, dense along F.
struct Rows {
  const char* data;
  DType dtype;
  int64_t stride_bytes;

  explicit Rows(const Tensor& x)
      : data(static_cast<const char*>(x.raw_data())),
        dtype(x.dtype()),
        stride_bytes(x.strides()[0] * size_of(x.dtype())) {}
  const char* at(int64_t row) const { return data + row * stride_bytes; }
};

// A row and its factor.
template <class W>
struct Term {
  const char* row;
  W factor;
};

// sums[f] += Σ factor · row[f] over kTogether rows of W, f < F; those of `next` are fetched on the way.
template <class W>
void AddTogether(int64_t F, const W* const (&rows)[kTogether], const Term<W>* terms, const Term<W>* next,
                 W* HWY_RESTRICT sums) {
  const hn::ScalableTag<W> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto a = hn::Set(d, terms[0].factor), b = hn::Set(d, terms[1].factor),
             c = hn::Set(d, terms[2].factor), e = hn::Set(d, terms[3].factor);
  int64_t f = 0;
  for (; f + lanes <= F; f += lanes) {
    for (int64_t k = 0; k < kTogether; ++k) hwy::Prefetch(next[k].row + f * static_cast<int64_t>(sizeof(W)));
    auto sum = hn::LoadU(d, sums + f);
    sum = hn::MulAdd(a, hn::LoadU(d, rows[0] + f), sum);
    sum = hn::MulAdd(b, hn::LoadU(d, rows[1] + f), sum);
    sum = hn::MulAdd(c, hn::LoadU(d, rows[2] + f), sum);
    sum = hn::MulAdd(e, hn::LoadU(d, rows[3] + f), sum);
    hn::StoreU(sum, d, sums + f);
  }
  for (; f < F; ++f) {
    for (int64_t k = 0; k < kTogether; ++k) sums[f] += terms[k].factor * rows[k][f];
  }
}

// sums (F) += Σ of `count` terms, whose rows are of `dtype`. `wide` has room for kTogether rows of W.
template <class W>
void AddTerms(int64_t F, DType dtype, const Term<W>* terms, int64_t count, W* wide, W* HWY_RESTRICT sums) {
  const hn::ScalableTag<W> d;
  const bool same = dtype == dtype_of<W>();
  int64_t k = 0;
  for (; k + kTogether <= count; k += kTogether) {
    const W* rows[kTogether];
    for (int64_t i = 0; i < kTogether; ++i) {
      if (same) {
        rows[i] = reinterpret_cast<const W*>(terms[k + i].row);
      } else {
        convert_run(dtype, terms[k + i].row, dtype_of<W>(), wide + i * F, F);
        rows[i] = wide + i * F;
      }
    }
    const bool more = same && k + 2 * kTogether <= count;
    AddTogether(F, rows, terms + k, more ? terms + k + kTogether : terms + k, sums);
  }
  for (; k < count; ++k) {
    const W* row = reinterpret_cast<const W*>(terms[k].row);
    if (!same) {
      convert_run(dtype, terms[k].row, dtype_of<W>(), wide, F);
      row = wide;
    }
    const auto factor = hn::Set(d, terms[k].factor);
    Map(
        d, F, sums, [&](auto x, auto s) HWY_ATTR { return hn::MulAdd(factor, x, s); }, row, sums);
  }
}

// What a thread needs beside its arguments.
template <class W>
struct Scratch {
  Scratch(int64_t F, int64_t most_terms)
      : wide(static_cast<size_t>(kTogether * F)), sums(static_cast<size_t>(F)) {
    terms.reserve(static_cast<size_t>(most_terms));
  }

  Workspace<W> wide, sums;
  Workspace<Term<W>> terms;
};

template <class W>
void SparseMatmul(const SparseRows& s, const Tensor& table, Tensor& y) {
  const int64_t R = y.size(0), F = y.size(1), S = s.index.size(1);
  const int64_t* count = s.count.data<int64_t>();
  const int32_t* index = s.index.data<int32_t>();
  const W* value = s.value.data<W>();
  const Rows from(table);
  char* out = static_cast<char*>(y.mutable_raw_data());
  parallel_for(R, 1, [&](int64_t begin, int64_t end) {
    Scratch<W> scratch(F, S);
    for (int64_t r = begin; r < end; ++r) {
      scratch.terms.clear();
      for (int64_t k = r * S; k < r * S + count[r]; ++k)
        scratch.terms.push_back({from.at(index[k]), value[k]});
      std::fill(scratch.sums.begin(), scratch.sums.end(), W{0});
      AddTerms(F, from.dtype, scratch.terms.data(), count[r], scratch.wide.data(), scratch.sums.data());
      convert_run(dtype_of<W>(), scratch.sums.data(), y.dtype(), out + r * F * size_of(y.dtype()), F);
    }
  });
}

// The same matrix by columns: those of column v are entries [first[v], first[v + 1]), rows ascending. Its
// memory is not counted, as a library's is not: 8 or 16 bytes an entry and 8 a column.
template <class W>
struct Columns {
  struct Entry {
    int32_t row;
    W value;
  };
  Workspace<int64_t> first;
  Workspace<Entry> entries;

  Columns(const SparseRows& s, int64_t V) : first(static_cast<size_t>(V + 1)) {
    const int64_t R = s.index.size(0), S = s.index.size(1);
    const int64_t* count = s.count.data<int64_t>();
    const int32_t* index = s.index.data<int32_t>();
    const W* value = s.value.data<W>();
    for (int64_t r = 0; r < R; ++r) {
      for (int64_t k = r * S; k < r * S + count[r]; ++k) ++first[static_cast<size_t>(index[k])];
    }
    int64_t total = 0;
    for (int64_t& f : first) total += std::exchange(f, total);
    entries.resize(static_cast<size_t>(total));
    for (int64_t r = 0; r < R; ++r) {
      for (int64_t k = r * S; k < r * S + count[r]; ++k)
        entries[static_cast<size_t>(first[static_cast<size_t>(index[k])]++)] = {static_cast<int32_t>(r),
                                                                                value[k]};
    }
    // Each now stands where the next column begins.
    std::move_backward(first.begin(), first.end() - 1, first.end());
    first[0] = 0;
  }

  // Calls f on a range of columns for each thread: as many entries and columns for all.
  template <class F>
  void share(int64_t grain, F&& f) const {
    const int64_t V = std::ssize(first) - 1;
    const auto column = [&](int64_t position) {  // the first with first[v] + v >= position
      int64_t low = 0, high = V;
      while (low < high) {
        const int64_t v = (low + high) / 2;
        first[static_cast<size_t>(v)] + v < position ? low = v + 1 : high = v;
      }
      return low;
    };
    parallel_for(std::ssize(entries) + V, grain,
                 [&](int64_t begin, int64_t end) { f(column(begin), column(end)); });
  }
};

template <class W>
void SparseTransposedMatmul(const SparseRows& s, const Tensor& x, const Tensor& row, double beta,
                            Tensor& table) {
  const int64_t V = table.size(0), F = table.size(1);
  const Columns<W> columns(s, V);
  const Rows from(x);
  const int64_t* id = row.defined() ? row.data<int64_t>() : nullptr;
  char* out = static_cast<char*>(table.mutable_raw_data());
  const int64_t out_bytes = F * size_of(table.dtype());
  columns.share(std::max<int64_t>(1, kGrain / F), [&](int64_t begin, int64_t end) {
    Scratch<W> scratch(F, s.index.size(0));
    for (int64_t v = begin; v < end; ++v) {
      const int64_t first = columns.first[static_cast<size_t>(v)],
                    last = columns.first[static_cast<size_t>(v + 1)];
      char* to = out + v * out_bytes;
      if (first == last) {
        if (beta == 0) std::fill_n(to, out_bytes, char{0});
        continue;
      }
      scratch.terms.clear();
      for (int64_t k = first; k < last; ++k) {
        const auto& entry = columns.entries[static_cast<size_t>(k)];
        scratch.terms.push_back({from.at(id ? id[entry.row] : entry.row), entry.value});
      }
      if (beta == 0) {
        std::fill(scratch.sums.begin(), scratch.sums.end(), W{0});
      } else {
        convert_run(table.dtype(), to, dtype_of<W>(), scratch.sums.data(), F);
      }
      AddTerms(F, from.dtype, scratch.terms.data(), last - first, scratch.wide.data(), scratch.sums.data());
      convert_run(dtype_of<W>(), scratch.sums.data(), table.dtype(), to, F);
    }
  });
}

void SparseMatmulAnyType(const SparseRows& s, const Tensor& table, Tensor& y) {
  s.value.dtype() == DType::f64 ? SparseMatmul<double>(s, table, y) : SparseMatmul<float>(s, table, y);
}

void SparseTransposedMatmulAnyType(const SparseRows& s, const Tensor& x, const Tensor& row, double beta,
                                   Tensor& table) {
  s.value.dtype() == DType::f64 ? SparseTransposedMatmul<double>(s, x, row, beta, table)
                                : SparseTransposedMatmul<float>(s, x, row, beta, table);
}

}  // namespace tapehead::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tapehead {

HWY_EXPORT(SparseMatmulAnyType);
HWY_EXPORT(SparseTransposedMatmulAnyType);

// table (V, 1) of column sums, summed in double.
static void sum_columns(const SparseRows& s, double beta, Tensor& table) {
  Workspace<double> sums(static_cast<size_t>(table.size(0)));
  const int64_t S = s.index.size(1);
  const int64_t* count = s.count.data<int64_t>();
  const int32_t* index = s.index.data<int32_t>();
  visit_floating(s.value.dtype(), "sparse_transposed_matmul", [&]<class T>(std::type_identity<T>) {
    const T* value = s.value.data<T>();
    for (int64_t r = 0; r < s.index.size(0); ++r) {
      for (int64_t k = r * S; k < r * S + count[r]; ++k)
        sums[static_cast<size_t>(index[k])] += static_cast<double>(static_cast<wide_t<T>>(value[k]));
    }
  });
  visit_floating(table.dtype(), "sparse_transposed_matmul", [&]<class T>(std::type_identity<T>) {
    T* out = table.mutable_data<T>();
    for (int64_t v = 0; v < table.size(0); ++v) {
      const double before = beta == 0 ? 0 : static_cast<double>(static_cast<wide_t<T>>(out[v]));
      out[v] = static_cast<T>(static_cast<wide_t<T>>(before + sums[static_cast<size_t>(v)]));
    }
  });
}

void CpuBackend::sparse_matmul(const SparseRows& s, const Tensor& table, Tensor& y) {
  if (y.numel() > 0) HWY_DYNAMIC_DISPATCH(SparseMatmulAnyType)(s, table, y);
}

void CpuBackend::sparse_transposed_matmul(const SparseRows& s, const Tensor& x, const Tensor& row,
                                          double beta, Tensor& table) {
  if (table.numel() == 0) return;
  if (!x.defined()) return sum_columns(s, beta, table);
  HWY_DYNAMIC_DISPATCH(SparseTransposedMatmulAnyType)(s, x, row, beta, table);
}

}  // namespace tapehead
#endif  // HWY_ONCE
