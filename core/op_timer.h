// Where the time of a computation goes, operation by operation.
//
//   const OpTimer timer;
//   backward(loss(model, batch));
//   for (const OpTime& op : timer.times()) fmt::print("{} {} {}\n", op.name, op.forward_seconds,
//   op.backward_seconds);
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tapehead/core/stopwatch.h"

namespace tapehead {

/// What the operations of one name took together: wall time, and how often they ran.
struct OpTime {
  std::string name;
  double forward_seconds = 0;
  double backward_seconds = 0;
  int64_t calls = 0;           ///< forward, recorded on the tape or not; none for views
  int64_t backward_calls = 0;  ///< of nodes that a gradient reached
};

/// While it lives, splits this thread's wall time among operations:
///  - forward: an operation is charged with all that passed since the event before it, the end of another
///    operation. Views take no time and are no event: an operation may make them on its way;
///  - backward: with its node's backward, the sums of its inputs' gradients, and what it frees. What its
///    backward calls, operations and another backward() included, is part of it and not charged again;
///  - the sums into the leaves' gradients have the name "accumulate_gradient".
/// What passes between the last operation and backward(), and after the last event, is nobody's.
/// Of several on one thread the innermost one observes alone. Without one, an operation pays a branch.
class OpTimer {
 public:
  OpTimer();
  ~OpTimer();
  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;

  /// By name, in the order of their first events.
  const std::vector<OpTime>& times() const { return times_; }

  /// What passed since the last event is nobody's.
  void skip() { lap(); }

  /// Whether this thread has a timer.
  static bool observing() { return current_ != nullptr; }

  /// Charges `name` with what passed since the last event, as one forward call: for work that is
  /// no operation. Does nothing on a thread without a timer. record() calls it for every
  /// operation that is no view.
  static void charge(const char* name) {
    if (current_) current_->end_forward(name);
  }

  /// One run of backward(), on the thread's timer if it has one. Used by backward() alone.
  class Backward {
   public:
    Backward();
    ~Backward();
    Backward(const Backward&) = delete;
    Backward& operator=(const Backward&) = delete;
    /// The node of this name, or the sum into a leaf, is done.
    void charge(const char* name) {
      if (timer_) timer_->end_backward(name);
    }

   private:
    OpTimer* timer_;  // null: there is none, or another backward() that called this one is charged
  };

 private:
  void end_forward(std::string_view name);
  void end_backward(std::string_view name);
  OpTime& entry(std::string_view name);
  double lap();

  static inline constinit thread_local OpTimer* current_ = nullptr;

  OpTimer* outer_;
  std::vector<OpTime> times_;
  Stopwatch since_;  // the last event
  bool in_backward_ = false;
};

}  // namespace tapehead
