#include "tapehead/core/tape_observer.h"

#include <utility>

namespace tapehead {

TapeObserver::TapeObserver() : outer_(std::exchange(newest_, this)) {}

TapeObserver::~TapeObserver() { newest_ = outer_; }

template <class F>
void TapeObserver::tell(TapeObserver* observer, F&& what) {
  if (!observer) return;
  tell(observer->outer_, what);
  what(*observer);
}

void TapeObserver::tell_result(const char* op, Tensor& result, std::span<const Tensor> inputs) {
  tell(newest_, [&](TapeObserver& observer) { observer.on_result(op, result, inputs); });
}

void TapeObserver::tell_gradient(const char* op, size_t input, Tensor& sum) {
  tell(newest_, [&](TapeObserver& observer) { observer.on_gradient(op, input, sum); });
}

}  // namespace tapehead
