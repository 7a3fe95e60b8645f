#include "tapehead/tools/memory_trace.h"

#include <algorithm>

#include "tapehead/core/memory.h"

namespace tapehead {

static constexpr size_t kMostMoments = 2000;

MemoryTrace::MemoryTrace(const LanguageModel& model, int64_t parameters, int64_t optimizer)
    : model_(model),
      parameters_(parameters),
      optimizer_(optimizer),
      before_(memory_stats(model.device()).live_bytes) {}

void MemoryTrace::note(std::string at) {
  if (moments_.size() >= kMostMoments) return;
  int64_t gradients = 0;
  for (const auto& [name, p] : model_.parameters()) {
    if (p.grad().defined()) gradients += p.grad().bytes();
  }
  // The head's own memory comes and goes within one operation, which is told when it has gone. What lives on
  // are the gradients that it made.
  const Device device = model_.device();
  const MemoryStats head_scope = memory_stats(device, "head");
  const int64_t passing = at == "linear_cross_entropy" ? head_scope.peak_bytes - head_scope.live_bytes : 0;
  const int64_t step = memory_stats(device).live_bytes - before_,
                head_weight = model_.head_weight().grad().defined() ? model_.head_weight().grad().bytes() : 0,
                head = std::clamp<int64_t>(head_scope.live_bytes - head_weight, 0,
                                           std::max<int64_t>(step - gradients, 0));
  nlohmann::ordered_json moment = {{"at", std::move(at)},
                                   {"parameters", parameters_},
                                   {"optimizer", optimizer_},
                                   {"gradients", gradients},
                                   {"activations", std::max<int64_t>(step - gradients - head, 0)},
                                   {"head", head + passing}};
  if (moments_.empty() || moments_.back() != moment) moments_.push_back(std::move(moment));
}

}  // namespace tapehead
