// How linear_cross_entropy divides its work: torch.nn.LinearCrossEntropyOptions, resolved for given sizes.
#pragma once

#include <optional>
#include <string>

#include "tapehead/backends/gradient_filter.h"
#include "tapehead/core/tensor.h"

namespace tapehead {

/// Which buffers of the chunk loop are wide as acc_dtype or narrow as the input (see linear_cross_entropy.h).
enum class AccPolicy : uint8_t { automatic, accurate, balanced, compact };

/// "auto", "accurate", "balanced", "compact".
std::string_view name(AccPolicy policy);

/// How the rows of a chunk are chosen.
struct ChunkingMethod {
  enum Kind : uint8_t {
    automatic,     ///< "auto": aspect_ratio, capped for compact so that chunking never costs memory
    auto_table,    ///< "auto_table": aspect_ratio for f16 and bf16 on the CPU, else aspect_ratio:2; no cap
    aspect_ratio,  ///< "aspect_ratio", "aspect_ratio:N": logits of about the size of the inputs, divided by N
    throughput,    ///< "throughput": as many rows as this device and dtype need for full speed
    budget,        ///< "budget:SIZE" ("64MiB", "5000"): the largest power of two whose transient memory fits
  };
  Kind kind = automatic;
  int64_t number = 1;  ///< N, or the budget's bytes
  bool operator==(const ChunkingMethod&) const = default;
};

/// Its text: "aspect_ratio:2", "budget:67108864".
std::string name(const ChunkingMethod& method);

/// "none", "stochastic", "stochastic:TAU" with TAU 2^-7 if left out, "threshold", "threshold:EPS" with EPS
/// 2^-12 if left out; 0 < TAU, EPS < 1. Throws ValueError.
GradientFilter parse_gradient_filter(std::string_view text);
/// Its text: "stochastic:0.0078125".
std::string name(const GradientFilter& filter);

/// Options with every choice made.
struct ResolvedLinearCrossEntropyOptions {
  bool allow_retain_graph;
  int64_t batch_chunk_size;                       ///< rows per chunk, >= 1
  std::optional<ChunkingMethod> chunking_method;  ///< absent where the size was given
  AccPolicy acc_policy;                           ///< never automatic
  DType acc_dtype;
  bool recompute;
  GradientFilter gradient_filter;
};

/// What a caller may choose; immutable, and legal as soon as it exists.
class LinearCrossEntropyOptions {
 public:
  struct Fields {
    bool allow_retain_graph = false;               ///< mean and sum keep gradients for further backwards
    std::optional<int64_t> batch_chunk_size = {};  ///< rows per chunk
    std::optional<std::string> chunking_method = "auto";
    std::string acc_policy = "auto";
    std::optional<DType> acc_dtype = {};
    /// Mean and sum keep no gradients from forward: backward computes again, as none does.
    bool recompute = false;
    /// Leaves out most of the gradient's entries, which are dust, and multiplies by the others alone:
    /// parse_gradient_filter(). The loss stays exact (linear_cross_entropy.h).
    std::string gradient_filter = "none";
  };

  LinearCrossEntropyOptions() : LinearCrossEntropyOptions(Fields()) {}
  /// Throws ValueError that names the field and its value: an unknown method, policy or filter, a size or
  /// factor below 1, an integer acc_dtype.
  LinearCrossEntropyOptions(Fields fields);  // NOLINT: LinearCrossEntropyOptions({.batch_chunk_size = 64})

  const Fields& fields() const { return fields_; }

  /// These options made concrete for N rows, F features and C classes of dtype T,
  /// with class indices or class probabilities as targets:
  ///  1. A given batch_chunk_size turns method "auto" into none.
  ///  2. Policy "auto" is accurate for f16 and bf16 on the CPU, else compact.
  ///  3. Method "auto" is aspect_ratio, and under compact at most floor_pow2(N·C / (4·F)) rows (N / 2 for
  ///     probabilities). "auto_table" is aspect_ratio for f16 and bf16 on the CPU, else aspect_ratio:2.
  ///  4. aspect_ratio:n is min(next_pow2(ceil(N / ceil(C / F))) / n, N) rows, at least 1. throughput is
  ///     the rows from which on products gain little (backends/tuning.h), at most N.
  ///     budget:SIZE counts the whole transient memory, beyond inputs, results and gradients, as if some rows
  ///     were ignored and every extra were used.
  ///  5. No method: the given size, at most N, or one chunk.
  ///  6. acc_dtype absent is f32 if the policy was "auto" and T is f16 or bf16, else T.
  /// Throws ValueError, naming both sizes, where a given size differs from that of a given method, or a size
  /// is negative; RuntimeError where acc_dtype differs from T other than f32 for f16 or bf16.
  ResolvedLinearCrossEntropyOptions resolve(int64_t N, int64_t F, int64_t C, DType T, Device device,
                                            bool probabilities = false) const;

 private:
  Fields fields_;
  std::optional<ChunkingMethod> method_;
  AccPolicy policy_;
  GradientFilter filter_;
};

}  // namespace tapehead
