// The CPU's kernels: one .cc file a family. What each must do is said in backends/backend.h.
#pragma once

#include "tapehead/backends/backend.h"
#include "tapehead/backends/memory_cache.h"

namespace tapehead {

class CpuBackend final : public Backend {
 public:
  // runtime.cc
  void* allocate(int64_t bytes) override;
  void deallocate(void* memory, int64_t bytes) noexcept override;
  int64_t system_allocations() const override;
  std::optional<int64_t> available_memory() const override;
  void copy_from_host(void* to, const void* from, int64_t bytes) override;
  void copy_to_host(void* to, const void* from, int64_t bytes) override;
  void synchronize() override {}
  bool can_capture() const override { return false; }
  std::unique_ptr<CapturedWork> capture(const std::function<void()>& work,
                                        std::span<const uint64_t> seeds) override;
  bool is_capturing() const override { return false; }
  void fill(Tensor& y, double value) override;
  void copy(const Tensor& x, Tensor& y) override;
  bool all_finite(const Tensor& x) override;

  // elementwise.cc
  void unary(Unary op, const Tensor& x, Tensor& y) override;
  void unary_backward(Unary op, const Tensor& saved, const Tensor& gy, Tensor& gx) override;
  void binary(Binary op, const Tensor& a, const Tensor& b, Tensor& y) override;
  void scale(const Tensor& factor, Tensor& y) override;
  void dropout(const Tensor& x, double p, uint64_t seed, uint64_t first, Tensor& y) override;

  // reduce.cc
  void accumulate(const Tensor& x, double scale, Tensor& y) override;
  void sum(const Tensor& x, double scale, Tensor& y) override;
  void max(const Tensor& x, Tensor& y) override;
  void max_backward(const Tensor& x, const Tensor& y, const Tensor& gy, Tensor& gx) override;

  // rows.cc
  void softmax(const Tensor& x, bool log, Tensor& y) override;
  void softmax_backward(const Tensor& y, const Tensor& gy, bool log, Tensor& gx) override;
  void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon, Tensor& y,
                  Tensor& mean, Tensor& rstd) override;
  void layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                           const Tensor& gy, Tensor& gx, Tensor& gweight, Tensor& gbias) override;
  void rms_norm(const Tensor& x, const Tensor& weight, double epsilon, Tensor& y, Tensor& rrms) override;
  void rms_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& rrms, const Tensor& gy,
                         Tensor& gx, Tensor& gweight) override;

  // cross_entropy.cc
  void cross_entropy_rows(const CrossEntropyRows& rows) override;

  // matmul.cc
  void matmul(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& y) override;

  // sparse.cc
  void sparse_matmul(const SparseRows& s, const Tensor& table, Tensor& y) override;
  void sparse_transposed_matmul(const SparseRows& s, const Tensor& x, const Tensor& row, double beta,
                                Tensor& table) override;

  // indices.cc
  Tensor checked_indices(const Tensor& ids, const IndexRange& range, IndexFault fault) override;
  void cross_entropy_targets(const CrossEntropyTargets& targets, IndexFault fault) override;

  // tables.cc
  void gather_rows(const Tensor& table, const Tensor& ids, Tensor& y) override;
  void scatter_rows(const Tensor& x, const Tensor& ids, Tensor& table) override;
  void scatter_add_rows(const Tensor& x, const Tensor& ids, const Tensor& scale, Tensor& table) override;
  void gather_add_rows(const Tensor& table, const Tensor& ids, const Tensor& scale, Tensor& y) override;

  // attention.cc
  void attention(const Attention& args, Tensor& y, Tensor& lse) override;
  void attention_backward(const Attention& args, const Tensor& y, const Tensor& lse, const Tensor& gy,
                          Tensor& gq, Tensor& gk, Tensor& gv) override;

  // rotary.cc
  void rotary(const Tensor& x, const Tensor& cosine, const Tensor& sine, bool backward, Tensor& y) override;

  // training.cc
  void adamw(const AdamW& numbers, std::span<Tensor> p, std::span<const Tensor> g, std::span<Tensor> m,
             std::span<Tensor> v, std::span<Tensor> master) override;
  void sgd(const Sgd& numbers, std::span<Tensor> p, std::span<const Tensor> g, std::span<Tensor> b,
           std::span<Tensor> master) override;
  void squared_norm(std::span<const Tensor> tensors, Tensor& y) override;
  void normal(double mean, double deviation, uint64_t seed, uint64_t first, Tensor& y) override;

 private:
  MemoryCache memory_;
};

/// The one CPU backend.
CpuBackend& cpu_backend();

}  // namespace tapehead
