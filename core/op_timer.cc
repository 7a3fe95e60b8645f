#include "tapehead/core/op_timer.h"

#include <algorithm>
#include <utility>

namespace tapehead {

OpTimer::OpTimer() : outer_(std::exchange(current_, this)) {}

OpTimer::~OpTimer() {
  current_ = outer_;
  if (outer_) outer_->since_ = {};  // what this one observed is not the outer one's
}

double OpTimer::lap() { return std::exchange(since_, {}).seconds(); }

OpTime& OpTimer::entry(std::string_view name) {
  const auto found = std::ranges::find(times_, name, &OpTime::name);
  return found != times_.end() ? *found : times_.emplace_back(OpTime{.name = std::string(name)});
}

void OpTimer::end_forward(std::string_view name) {
  if (in_backward_) return;
  OpTime& time = entry(name);
  time.forward_seconds += lap();
  ++time.calls;
}

void OpTimer::end_backward(std::string_view name) {
  OpTime& time = entry(name);
  time.backward_seconds += lap();
  ++time.backward_calls;
}

OpTimer::Backward::Backward() : timer_(current_ && !current_->in_backward_ ? current_ : nullptr) {
  if (!timer_) return;
  timer_->in_backward_ = true;
  timer_->since_ = {};
}

OpTimer::Backward::~Backward() {
  if (!timer_) return;
  timer_->in_backward_ = false;
  timer_->since_ = {};
}

}  // namespace tapehead
