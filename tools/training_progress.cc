#include "tapehead/tools/training_progress.h"

#include <fmt/core.h>

#include "tapehead/core/memory.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/product_floor.h"

namespace tapehead {

// One product's time is enough for a line; the first of two makes the library ready.
static double measure_floor(const ProgressSubject& subject) {
  ReferenceProduct product(subject.dtype, 1024);
  product.seconds();
  const double rate = product.flops() / product.seconds();
  return subject.step_flops / rate;
}

void TrainingProgress::step(const StepMetrics& metrics) {
  ++steps_;
  targets_ += metrics.tokens;
  seconds_ += metrics.seconds;
  const bool logs = log_every_ > 0 && metrics.step % log_every_ == 0;
  if (!logs && !line_.due()) return;
  const std::string text = describe(metrics);
  logs ? line_.log(text) : line_.show(text);
}

std::string TrainingProgress::describe(const StepMetrics& m) {
  if (floor_seconds_ == 0) floor_seconds_ = measure_floor(subject_);
  const double rate = static_cast<double>(targets_) / seconds_, steps = static_cast<double>(steps_);
  const int64_t all = subject_.steps;
  return fmt::format(
      "step {}/{}  loss {:.3f}  smoothed {:.3f}  lr {:.2e}  gradient {:.2f}  {} {}/s  {} left  products "
      "{:.0f} %  {}",
      m.step, all, m.loss, m.smoothed_loss, m.lr, m.grad_norm, format_count(static_cast<int64_t>(rate)),
      subject_.unit, format_duration(static_cast<double>(all - m.step) * seconds_ / steps),
      100 * floor_seconds_ * steps / seconds_, format_bytes(memory_stats(subject_.device).peak_bytes));
}

}  // namespace tapehead
