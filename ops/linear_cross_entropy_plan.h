// What a call of linear_cross_entropy will allocate, from its shapes alone. The op takes its buffers from
// this plan, so that the plan is exact: tests hold it equal, to the byte, to what the allocator counts.
//
// Shape letters: N rows, n rows that the passes go through, F in_features, C classes, B rows in one chunk.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "tapehead/ops/linear_cross_entropy.h"

namespace tapehead {

class RowLoss;  // ops/row_loss.h

/// How long a buffer lives.
enum class Lifetime : uint8_t {
  chunk,           ///< while chunks go through: one buffer, used again by each
  pass,            ///< until the pass over all rows, forward or backward, ends
  until_backward,  ///< from forward until backward hands it on or is done with it
  result,          ///< it belongs to the caller
};

/// "chunk", "forward", "until backward", "result"; a pass of backward is "backward".
std::string_view name(Lifetime lifetime, bool in_backward = false);

struct PlannedBuffer {
  std::string name;
  DType dtype;
  Shape shape;
  Lifetime lifetime;

  int64_t bytes() const { return bytes_of(shape, dtype); }
};

/// The buffers of one pass, in the order in which they are allocated.
struct PassPlan {
  std::vector<PlannedBuffer> buffers;
  /// The most that is live at once beyond the arguments; backward's counts what forward left.
  int64_t peak_bytes = 0;

  /// The buffer of this name, uninitialised; undefined if the plan has none.
  Tensor allocate(std::string_view name, Device device) const;
  int64_t bytes(Lifetime lifetime) const;
};

/// What one path allocates.
struct PathPlan {
  PassPlan forward, backward;

  /// The most that is live at once in either pass.
  int64_t peak_bytes() const { return std::max(forward.peak_bytes, backward.peak_bytes); }
};

/// The sizes of a call and what it asks for; all that a plan depends on besides the arguments' numbers.
struct LinearCrossEntropyProblem {
  int64_t N = 0, F = 0, C = 0;
  DType dtype = DType::f32;
  Device device = {};
  bool probabilities = false;  ///< targets are class probabilities
  bool bias = false;
  bool stats = false;
  /// Which gradients are wanted; none under no_grad.
  bool input_grad = true, weight_grad = true, bias_grad = true;
  int64_t ignored_rows = 0;  ///< rows with target ignore_index or token weight 0, as far as the host knows

  /// Whether rows are picked out of the input's, and not taken where they stand.
  bool picks_rows() const;
  bool any_grad() const { return input_grad || weight_grad || (bias && bias_grad); }
};

struct LinearCrossEntropyPlan {
  ResolvedLinearCrossEntropyOptions options;
  int64_t chunks = 0;          ///< of options.batch_chunk_size rows each, the last of what is left
  PathPlan chunked;            ///< with these options, or the default ones where the arguments have none
  PathPlan reference;          ///< the whole logits
  bool chunking_pays = false;  ///< N >= F and C > F: below that the reference path is cheaper
};

/// The problem that a call with a two-dimensional weight is. Reads target and token weights, and throws what
/// linear_cross_entropy does on them.
LinearCrossEntropyProblem problem_of(const Tensor& input, const Tensor& weight, const Tensor& target,
                                     const LinearCrossEntropyArgs& args);

/// The same, where the op has read the rows already.
LinearCrossEntropyProblem problem_of(const Tensor& input, const Tensor& weight, const Tensor& target,
                                     const LinearCrossEntropyArgs& args, const RowLoss& rows);

/// The plan for dense arguments of a two-dimensional weight. Of `args`, tensors are not read. Memory that
/// products take for themselves (packed and widened panels), and sorting what a gradient filter leaves
/// (some 20 bytes an entry), is not in it. Throws what resolve() does, and ValueError for sizes whose buffers
/// take more than 2^61 bytes in a pass.
LinearCrossEntropyPlan plan_linear_cross_entropy(const LinearCrossEntropyProblem& problem,
                                                 const LinearCrossEntropyArgs& args);

/// The chunked path alone, for options that are resolved: what the op itself asks for.
PathPlan plan_chunked(const LinearCrossEntropyProblem& problem, const CrossEntropyArgs& args,
                      const ResolvedLinearCrossEntropyOptions& options);

/// What a pass of the chunked path allocates beyond arguments, results and gradients, N rows that count and
/// others besides, with every extra that LinearCrossEntropyArgs has: the most that such a call can take.
int64_t transient_bytes(const ResolvedLinearCrossEntropyOptions& options, int64_t N, int64_t F, int64_t C,
                        DType T, Device device, bool probabilities);

}  // namespace tapehead
