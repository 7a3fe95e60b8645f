#include "tapehead/models/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tapehead/core/error.h"

namespace tapehead {

namespace {

// Where a run stands after its warm-up, in [0, 1] between peak and minimum.
struct Descent {
  std::string_view name;
  double (*depth)(const Schedule& schedule, int64_t step);
};

double share_done(int64_t step, int64_t first, int64_t last) {
  return step >= last ? 1 : static_cast<double>(step - first) / static_cast<double>(last - first);
}

constexpr Descent kDescents[] = {
    {"cosine",
     [](const Schedule& s, int64_t step) {
       return (1 - std::cos(std::numbers::pi * share_done(step, s.warmup, s.steps))) / 2;
     }},
    {"linear", [](const Schedule& s, int64_t step) { return share_done(step, s.warmup, s.steps); }},
    {"constant", [](const Schedule&, int64_t) { return 0.0; }},
    {"wsd",
     [](const Schedule& s, int64_t step) {
       const int64_t decay = s.decay > 0 ? s.decay : std::max<int64_t>(s.steps / 10, 1);
       const int64_t first = std::max(s.warmup, s.steps - decay);
       return step <= first ? 0.0 : share_done(step, first, s.steps);
     }},
};

}  // namespace

double Schedule::at(int64_t step) const {
  const auto descent = std::ranges::find(kDescents, name, &Descent::name);
  check<ValueError>(descent != std::end(kDescents), "[schedule] name is {}: it is {}", name,
                    fmt::join(names(), ", "));
  if (step <= warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  return std::lerp(peak, minimum, descent->depth(*this, step));
}

std::vector<std::string_view> Schedule::names() {
  std::vector<std::string_view> list;
  for (const Descent& descent : kDescents) list.push_back(descent.name);
  return list;
}

}  // namespace tapehead
