// The tape: what was computed, and backward through it.
//
// Always true:
//  1. A node's sequence number is its place on the tape: every input was produced by a node
//     with a smaller one.
//  2. One node, one output. The output's slot owns its producer; a node owns the slots of its inputs.
//  3. Saved tensors are detached and carry the version that they were saved at.
//  4. A gradient has the shape, dtype and device of its slot; accumulate_gradient alone makes that so.
//  5. A tensor is added to in place only while nobody else holds it; so a gradient may be handed
//     on without a copy.
//  6. Nothing recurses: building, backward and destruction take constant stack, however deep the graph.
//  7. Backward runs with grad mode off: gradients are leaves' numbers, not a graph of their own.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "tapehead/core/memory.h"
#include "tapehead/core/tensor.h"

namespace tapehead {

/// Whether operations on this thread are recorded. On by default.
bool grad_enabled();

/// Grad mode off on this thread, until destroyed.
class NoGradGuard {
 public:
  NoGradGuard();
  ~NoGradGuard();
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;

 private:
  bool outer_;
};

/// Grad mode on, where it may be off: for a backward that runs operations to differentiate.
class EnableGradGuard {
 public:
  EnableGradGuard();
  ~EnableGradGuard();
  EnableGradGuard(const EnableGradGuard&) = delete;
  EnableGradGuard& operator=(const EnableGradGuard&) = delete;

 private:
  bool outer_;
};

/// One gradient for each input, in their order; undefined where the input gets none or needs none.
using Gradients = std::vector<Tensor>;

class Node;

/// What a node's backward is handed.
class Upstream {
 public:
  Upstream(const Node& node, Tensor gradient, std::span<Tensor* const> sums)
      : grad(std::move(gradient)), node_(node), sums_(sums) {}

  /// The gradient of the output: of its shape and dtype, any strides.
  Tensor grad;

  /// Whether input i wants a gradient; others need not be computed.
  bool needs(size_t i) const;
  /// The i-th saved tensor. Throws RuntimeError if it was changed in place since.
  Tensor saved(size_t i) const;
  /// What input i got so far from other operations of this backward, dense and nobody else's, or null. An
  /// operation whose gradient is 0 nearly everywhere may add it there, and give back none.
  Tensor* sum_so_far(size_t i) const { return sums_[i]; }

 private:
  const Node& node_;
  std::span<Tensor* const> sums_;
};

using BackwardFunction = std::function<Gradients(const Upstream&)>;

/// One recorded operation. Made by record().
class Node {
 public:
  Node(const char* op, std::span<const Tensor> inputs, const Tensor& output, std::span<const Tensor> saved,
       BackwardFunction backward, const char* once);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const char* op() const { return op_; }
  int64_t sequence() const { return sequence_; }
  /// The slots that the inputs' gradients go to; null where an input needs none.
  const std::vector<std::shared_ptr<GradientSlot>>& inputs() const { return inputs_; }
  /// The gradients of the inputs; `sums`: Upstream::sum_so_far of each. Throws RuntimeError once released.
  Gradients backward(Tensor gradient, std::span<Tensor* const> sums) const;
  /// Frees what was saved, and the edges: this node has been used.
  void release();
  bool released() const { return !backward_; }
  /// Whether backward consumes what this node holds, so that retain_graph cannot keep it.
  bool once() const { return once_ != nullptr; }

 private:
  friend class Upstream;

  struct Saved {
    Tensor tensor;
    int64_t version;
    int64_t input;  // which input it is; -1: a result
  };

  const char* op_;
  const char* once_;
  int64_t sequence_;
  std::vector<std::shared_ptr<GradientSlot>> inputs_;
  std::vector<Saved> saved_;
  BackwardFunction backward_;
  MemoryCounter* scope_;  // of forward: what backward allocates counts there, too
};

/// Where the gradient of one tensor goes.
struct GradientSlot {
  GradientSlot(Shape s, DType t, Device d) : shape(std::move(s)), dtype(t), device(d) {}

  Shape shape;
  DType dtype;
  Device device;
  std::shared_ptr<Node> producer;  ///< null: a leaf
  Tensor gradient;                 ///< a leaf's accumulated gradient
  std::vector<std::function<Tensor(const Tensor&)>> hooks;
};

/// Whether record() would append a node for these inputs: grad mode is on and one of them
/// requires a gradient. For ops that keep extra results for their backward. Undefined tensors may
/// stand among the inputs.
bool will_record(std::initializer_list<Tensor> inputs);

/// Every op ends here. Returns `output`; if will_record(inputs), output becomes the result of a new node that
/// keeps `saved` (inputs, output, or anything else that backward reads) until it is used or dropped. `op`
/// must outlive the node: a string literal. `output` must be a fresh tensor; views of inputs are fresh.
/// `inputs` and `saved` may hold undefined tensors. `backward` captures no tensor that requires a gradient:
/// it would own a part of the tape past this node (invariant 6); `saved` detaches.
///
/// `once` is for a backward that hands on what it holds instead of a copy: it works one time, retain_graph or
/// not, and the error of a second one ends with this advice.
Tensor record(const char* op, Tensor output, std::span<const Tensor> inputs, std::span<const Tensor> saved,
              BackwardFunction backward, const char* once = nullptr);
inline Tensor record(const char* op, Tensor output, std::initializer_list<Tensor> inputs,
                     std::initializer_list<Tensor> saved, BackwardFunction backward,
                     const char* once = nullptr) {
  return record(op, std::move(output), std::span(inputs.begin(), inputs.size()),
                std::span(saved.begin(), saved.size()), std::move(backward), once);
}

/// Adds the gradients of all leaves that `output` depends on to their grad().
///
/// `gradient` is that of `output`: its shape, dtype and device; left out, 1 for a tensor of one element.
/// Unless `retain_graph`, the tape is freed on the way, and a second backward through any
/// part of it is an error.
/// Throws RuntimeError if output requires no gradient or the tape was freed, ValueError on the gradient's
/// shape and device, TypeError on its dtype.
void backward(const Tensor& output, Tensor gradient = {}, bool retain_graph = false);

/// Where gradients are summed: sum += incoming. Only an operation that adds to
/// Upstream::sum_so_far() does so elsewhere.
///
/// `incoming` may have more or larger dimensions than the slot where the slot's shape was broadcast: it is
/// summed over them. An undefined `incoming` adds nothing; an undefined `sum` adopts it, or its copy when
/// others hold it and `exclusive` is asked for. Throws RuntimeError that begins with [op] on another
/// shape, dtype or device.
void accumulate_gradient(const char* op, const GradientSlot& slot, Tensor incoming, Tensor& sum,
                         bool exclusive);

}  // namespace tapehead
