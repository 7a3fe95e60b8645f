// The learning rate over a run.
//
// With s the step, which counts from 1, w of warm-up, n in all, and f = (s - w) / (n - w)
// the share of the rest that is done:
//
//   s <= w     peak · s / w, whatever the schedule
//   cosine     minimum + (peak - minimum) · (1 + cos(πf)) / 2
//              (Loshchilov and Hutter, "SGDR", 2017, without restarts)
//   linear     peak + (minimum - peak) · f
//   constant   peak
//   wsd        warm-up, stable, decay: peak until the last d steps, then linear, reaching minimum at n
//              (Hu et al., "MiniCPM", 2024)
//
// Past n, every one but constant stays at minimum.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tapehead {

struct Schedule {
  std::string name = "cosine";
  double peak = 0;
  double minimum = 0;
  int64_t warmup = 0;
  int64_t steps = 1;
  int64_t decay = 0;  ///< wsd's d; 0: a tenth of the steps, at least one

  /// The learning rate of `step`. Throws ValueError on another name than those above.
  double at(int64_t step) const;

  /// Those above, in that order.
  static std::vector<std::string_view> names();
};

}  // namespace tapehead
