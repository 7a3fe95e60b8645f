#include "tapehead/core/tape.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>
#include <unordered_set>

#include "tapehead/core/op_timer.h"
#include "tapehead/core/tape_observer.h"

namespace tapehead {

static thread_local bool grad_mode = true;

bool grad_enabled() { return grad_mode; }

NoGradGuard::NoGradGuard() : outer_(std::exchange(grad_mode, false)) {}
NoGradGuard::~NoGradGuard() { grad_mode = outer_; }

EnableGradGuard::EnableGradGuard() : outer_(std::exchange(grad_mode, true)) {}
EnableGradGuard::~EnableGradGuard() { grad_mode = outer_; }

// ---- Upstream and Node

bool Upstream::needs(size_t i) const { return node_.inputs_.at(i) != nullptr; }

Tensor Upstream::saved(size_t i) const {
  const Node::Saved& s = node_.saved_.at(i);
  if (!s.tensor.defined()) return {};
  if (s.tensor.version() != s.version) {
    fail<RuntimeError>(
        "[{}] {} of shape {} was changed in place after forward: saved at version {}, now at version {}",
        node_.op_, s.input < 0 ? "its result" : fmt::format("input {}", s.input), s.tensor.shape(), s.version,
        s.tensor.version());
  }
  return s.tensor;
}

static int64_t next_sequence() {
  static std::atomic<int64_t> counter = 0;
  return counter++;
}

Node::Node(const char* op, std::span<const Tensor> inputs, const Tensor& output,
           std::span<const Tensor> saved, BackwardFunction backward, const char* once)
    : op_(op),
      once_(once),
      sequence_(next_sequence()),
      backward_(std::move(backward)),
      scope_(MemoryScope::here()) {
  for (const Tensor& x : inputs) inputs_.push_back(x.defined() ? x.slot() : nullptr);
  for (const Tensor& s : saved) {
    const auto source =
        std::find_if(inputs.begin(), inputs.end(), [&](const Tensor& x) { return x.is_same(s); });
    // Detached (invariant 3), and so is the output, or it would own itself.
    saved_.push_back({.tensor = s.defined() ? s.detach() : Tensor(),
                      .version = s.defined() ? s.version() : 0,
                      .input = source == inputs.end() || s.is_same(output) ? -1 : source - inputs.begin()});
  }
}

// A chain of owners (node, slot, node, ...) would be destroyed by recursion. Instead the outermost destructor
// on this thread drains a list that the inner ones add to.
Node::~Node() {
  static thread_local std::vector<std::shared_ptr<GradientSlot>>* doomed = nullptr;
  if (doomed) {
    std::move(inputs_.begin(), inputs_.end(), std::back_inserter(*doomed));
    return;
  }
  std::vector<std::shared_ptr<GradientSlot>> list = std::move(inputs_);
  doomed = &list;
  while (!list.empty()) {
    const std::shared_ptr<GradientSlot> slot = std::move(list.back());
    list.pop_back();
  }
  doomed = nullptr;
}

Gradients Node::backward(Tensor gradient, std::span<Tensor* const> sums) const {
  check<RuntimeError>(!released(),
                      "[{}] backward a second time, but the first freed what this operation held: {}", op_,
                      once_ ? once_ : "pass retain_graph = true to the first, or run forward again");
  const MemoryScope scope(scope_);
  Gradients gradients = backward_(Upstream(*this, std::move(gradient), sums));
  check<RuntimeError>(gradients.size() == inputs_.size(), "[{}] backward gave {} gradients for {} inputs",
                      op_, gradients.size(), inputs_.size());
  return gradients;
}

void Node::release() {
  backward_ = nullptr;
  saved_.clear();
  inputs_.clear();
}

// ---- Recording

static bool any_wants_gradient(std::span<const Tensor> inputs) {
  const auto wants = [](const Tensor& x) { return x.defined() && x.requires_grad(); };
  return grad_mode && std::any_of(inputs.begin(), inputs.end(), wants);
}

static bool is_view(const Tensor& output, std::span<const Tensor> inputs) {
  const auto shares = [&](const Tensor& x) { return x.defined() && x.storage() == output.storage(); };
  return std::any_of(inputs.begin(), inputs.end(), shares);
}

bool will_record(std::initializer_list<Tensor> inputs) { return any_wants_gradient(inputs); }

Tensor record(const char* op, Tensor output, std::span<const Tensor> inputs, std::span<const Tensor> saved,
              BackwardFunction backward, const char* once) {
  // A view makes no numbers; operations view results that are not written yet.
  if ((OpTimer::observing() || TapeObserver::observing()) && !is_view(output, inputs)) {
    OpTimer::charge(op);
    TapeObserver::tell_result(op, output, inputs);
  }
  if (!any_wants_gradient(inputs)) return output;
  auto slot = std::make_shared<GradientSlot>(output.shape(), output.dtype(), output.device());
  slot->producer = std::make_shared<Node>(op, inputs, output, saved, std::move(backward), once);
  output.set_slot(std::move(slot));
  return output;
}

// ---- Backward

void accumulate_gradient(const char* op, const GradientSlot& slot, Tensor incoming, Tensor& sum,
                         bool exclusive) {
  if (!incoming.defined()) return;
  check<RuntimeError>(incoming.dtype() == slot.dtype && incoming.device() == slot.device,
                      "[{}] backward gave a gradient of {} on {} to an input of {} on {}", op,
                      incoming.dtype(), incoming.device(), slot.dtype, slot.device);
  DeviceRuntime& runtime = device_runtime(slot.device);
  const bool same_shape = incoming.shape() == slot.shape;
  check<RuntimeError>(broadcasts_to(slot.shape, incoming.shape()),
                      "[{}] backward gave a gradient of shape {} to an input of shape {}", op,
                      incoming.shape(), slot.shape);
  if (!sum.defined()) {
    if (!same_shape) {
      sum = Tensor::zeros(slot.shape, slot.dtype, slot.device);
      runtime.accumulate(incoming, 1, sum);
    } else if (exclusive && !(incoming.is_exclusive() && incoming.is_contiguous())) {
      sum = incoming.clone();
    } else {
      sum = std::move(incoming);
    }
    return;
  }
  // Invariant 5: others may hold what was adopted before.
  if (!sum.is_exclusive() || !sum.is_contiguous()) sum = sum.clone();
  sum.bump_version();
  runtime.accumulate(incoming, 1, sum);
}

// All slots that `root` depends on, in the order in which backward visits them: newest
// producer first, then leaves.
static std::vector<std::shared_ptr<GradientSlot>> newest_first(const std::shared_ptr<GradientSlot>& root) {
  std::vector<std::shared_ptr<GradientSlot>> order = {root};
  std::unordered_set<const GradientSlot*> seen = {root.get()};
  for (size_t i = 0; i < order.size(); ++i) {
    if (!order[i]->producer) continue;
    for (const std::shared_ptr<GradientSlot>& input : order[i]->producer->inputs()) {
      if (input && seen.insert(input.get()).second) order.push_back(input);
    }
  }
  const auto age = [](const std::shared_ptr<GradientSlot>& s) {
    return s->producer ? s->producer->sequence() : -1;
  };
  std::stable_sort(order.begin(), order.end(), [&](const auto& a, const auto& b) { return age(a) > age(b); });
  return order;
}

static Tensor initial_gradient(const Tensor& output, Tensor gradient) {
  if (!gradient.defined()) {
    check<ValueError>(output.numel() == 1,
                      "[backward] a gradient may be left out for one element only, and the output has shape "
                      "{}: pass one of that shape",
                      output.shape());
    return Tensor::full(output.shape(), 1, output.dtype(), output.device());
  }
  check<ValueError>(gradient.shape() == output.shape(), "[backward] the gradient has shape {}, the output {}",
                    gradient.shape(), output.shape());
  check<TypeError>(gradient.dtype() == output.dtype(), "[backward] the gradient has dtype {}, the output {}",
                   gradient.dtype(), output.dtype());
  check<ValueError>(
      gradient.device() == output.device(),
      "[backward] output is on {}, but gradient on {}: bring them to one device with Tensor::to",
      output.device(), gradient.device());
  return gradient.detach();
}

static void tell_gradient(const char* op, size_t input, Tensor& sum) {
  if (TapeObserver::observing() && sum.defined()) TapeObserver::tell_gradient(op, input, sum);
}

void backward(const Tensor& output, Tensor gradient, bool retain_graph) {
  check<RuntimeError>(output.requires_grad(),
                      "[backward] the output of shape {} depends on nothing that requires a gradient, or was "
                      "computed with grad mode off (gradients of gradients are not supported)",
                      output.shape());
  const NoGradGuard no_grad;
  OpTimer::Backward timing;
  std::vector<std::shared_ptr<GradientSlot>> order = newest_first(output.slot());
  std::unordered_map<const GradientSlot*, Tensor> pending;
  pending[order[0].get()] = initial_gradient(output, std::move(gradient));

  for (std::shared_ptr<GradientSlot>& visited : order) {
    // Taken out of the list, so that what it owns is freed as soon as it has been used.
    const std::shared_ptr<GradientSlot> slot = std::move(visited);
    const auto found = pending.find(slot.get());
    Tensor total = found == pending.end() ? Tensor() : std::move(found->second);
    if (found != pending.end()) pending.erase(found);
    if (total.defined()) {
      const auto hooks = slot->hooks;  // a hook may register another
      for (const auto& hook : hooks) {
        if (Tensor replaced = hook(total); replaced.defined()) {
          Tensor checked;
          accumulate_gradient("register_hook", *slot, std::move(replaced), checked, false);
          total = std::move(checked);
        }
      }
    }
    Node* node = slot->producer.get();
    if (!node) {
      accumulate_gradient("backward", *slot, std::move(total), slot->gradient, true);
      tell_gradient("accumulate_gradient", 0, slot->gradient);
      timing.charge("accumulate_gradient");
      continue;
    }
    const bool reached = total.defined();
    if (reached) {
      std::vector<Tensor*> sums(node->inputs().size(), nullptr);
      for (size_t i = 0; i < sums.size(); ++i) {
        const auto sum = pending.find(node->inputs()[i].get());
        if (sum != pending.end() && sum->second.is_exclusive() && sum->second.is_contiguous())
          sums[i] = &sum->second;
      }
      Gradients gradients = node->backward(std::move(total), sums);
      for (size_t i = 0; i < gradients.size(); ++i) {
        if (!node->inputs()[i]) continue;
        Tensor& sum = pending[node->inputs()[i].get()];
        accumulate_gradient(node->op(), *node->inputs()[i], std::move(gradients[i]), sum, false);
        tell_gradient(node->op(), i, sum);
      }
    }
    if (!retain_graph || (reached && node->once())) node->release();
    if (reached) timing.charge(node->op());
  }
}

}  // namespace tapehead
