// The kernels of an NVIDIA GPU: one .cu file a family. What each must do is said in backends/backend.h.
//
// All work goes through one stream, in the order of the calls, so memory that was given back can be handed
// out again at once. Nothing waits for the device but copy_to_host, all_finite and synchronize. All of it but
// these can be recorded.
#pragma once

#include "tapehead/backends/backend.h"
#include "tapehead/backends/cuda/device_memory.h"
#include "tapehead/backends/cuda/index_faults.h"
#include "tapehead/backends/cuda/stream.h"

namespace tapehead {

class CapturedGraph;
struct RandomStart;

class CudaBackend final : public Backend {
 public:
  CudaBackend();

  // runtime.cu
  void* allocate(int64_t bytes) override;
  void deallocate(void* memory, int64_t bytes) noexcept override;
  int64_t system_allocations() const override;
  std::optional<int64_t> available_memory() const override;
  void copy_to_host(void* to, const void* from, int64_t bytes) override;
  void synchronize() override;
  void fill(Tensor& y, double value) override;
  void copy(const Tensor& x, Tensor& y) override;
  bool all_finite(const Tensor& x) override;

  // captured_graph.cu
  void copy_from_host(void* to, const void* from, int64_t bytes) override;
  bool can_capture() const override { return true; }
  std::unique_ptr<CapturedWork> capture(const std::function<void()>& work,
                                        std::span<const uint64_t> seeds) override;
  bool is_capturing() const override { return stream_.is_capturing(); }

  // elementwise.cu
  void unary(Unary op, const Tensor& x, Tensor& y) override;
  void unary_backward(Unary op, const Tensor& saved, const Tensor& gy, Tensor& gx) override;
  void binary(Binary op, const Tensor& a, const Tensor& b, Tensor& y) override;
  void scale(const Tensor& factor, Tensor& y) override;
  void dropout(const Tensor& x, double p, uint64_t seed, uint64_t first, Tensor& y) override;

  // reduce.cu
  void accumulate(const Tensor& x, double scale, Tensor& y) override;
  void sum(const Tensor& x, double scale, Tensor& y) override;
  void max(const Tensor& x, Tensor& y) override;
  void max_backward(const Tensor& x, const Tensor& y, const Tensor& gy, Tensor& gx) override;

  // softmax.cu
  void softmax(const Tensor& x, bool log, Tensor& y) override;
  void softmax_backward(const Tensor& y, const Tensor& gy, bool log, Tensor& gx) override;

  // norms.cu
  void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon, Tensor& y,
                  Tensor& mean, Tensor& rstd) override;
  void layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                           const Tensor& gy, Tensor& gx, Tensor& gweight, Tensor& gbias) override;
  void rms_norm(const Tensor& x, const Tensor& weight, double epsilon, Tensor& y, Tensor& rrms) override;
  void rms_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& rrms, const Tensor& gy,
                         Tensor& gx, Tensor& gweight) override;

  // cross_entropy.cu
  void cross_entropy_rows(const CrossEntropyRows& rows) override;

  // matmul.cu
  void matmul(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& y) override;

  // sparse.cu
  void sparse_matmul(const SparseRows& s, const Tensor& table, Tensor& y) override;
  void sparse_transposed_matmul(const SparseRows& s, const Tensor& x, const Tensor& row, double beta,
                                Tensor& table) override;

  // indices.cu
  Tensor checked_indices(const Tensor& ids, const IndexRange& range, IndexFault fault) override;
  void cross_entropy_targets(const CrossEntropyTargets& targets, IndexFault fault) override;

  // tables.cu
  void gather_rows(const Tensor& table, const Tensor& ids, Tensor& y) override;
  void scatter_rows(const Tensor& x, const Tensor& ids, Tensor& table) override;
  void scatter_add_rows(const Tensor& x, const Tensor& ids, const Tensor& scale, Tensor& table) override;
  void gather_add_rows(const Tensor& table, const Tensor& ids, const Tensor& scale, Tensor& y) override;

  // attention.cu
  void attention(const Attention& args, Tensor& y, Tensor& lse) override;
  void attention_backward(const Attention& args, const Tensor& y, const Tensor& lse, const Tensor& gy,
                          Tensor& gq, Tensor& gk, Tensor& gv) override;

  // rotary.cu
  void rotary(const Tensor& x, const Tensor& cosine, const Tensor& sine, bool backward, Tensor& y) override;

  // training.cu
  void adamw(const AdamW& numbers, std::span<Tensor> p, std::span<const Tensor> g, std::span<Tensor> m,
             std::span<Tensor> v, std::span<Tensor> master) override;
  void sgd(const Sgd& numbers, std::span<Tensor> p, std::span<const Tensor> g, std::span<Tensor> b,
           std::span<Tensor> master) override;
  void squared_norm(std::span<const Tensor> tensors, Tensor& y) override;

  // random.cu
  void normal(double mean, double deviation, uint64_t seed, uint64_t first, Tensor& y) override;

  /// The stream that kernels are launched on.
  Stream& stream() { return stream_; }

 private:
  friend CapturedGraph;

  /// Writes a few bytes by kernels that bring them as parameters: recorded, they do not look at the host's
  /// memory again.
  void write(void* to, const void* from, int64_t bytes);
  RandomStart random_start(uint64_t seed, uint64_t first) const;
  void multiply(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& y);

  Stream stream_;
  DeviceMemory memory_;
  IndexFaults faults_;
  std::mutex products_;  // the handle of cuBLAS serves one thread at a time
  cublasHandle_t cublas_ = nullptr;
  const CapturedGraph* recording_ = nullptr;
};

/// The one CUDA backend; made at the first call. Throws what Stream() throws, at each call until it succeeds.
CudaBackend& cuda_backend();

/// The same, for backends/backend.cc, which does not know CUDA's headers.
Backend& linked_cuda_backend();

}  // namespace tapehead
