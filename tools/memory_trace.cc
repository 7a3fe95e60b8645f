#include "tapehead/tools/memory_trace.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "tapehead/core/file.h"
#include "tapehead/core/memory.h"
#include "tapehead/core/tape_observer.h"

namespace tapehead {

namespace {

using json = nlohmann::ordered_json;

constexpr size_t kMostMoments = 2000;

int64_t gradient_bytes(const Tensor& parameter) {
  return parameter.grad().defined() ? parameter.grad().bytes() : 0;
}

/// While it lives, takes note after every operation of what the parameters' device holds.
class MemoryTrace final : public TapeObserver {
 public:
  MemoryTrace(const MemoryPlan& plan, ParameterList parameters, std::vector<Tensor> of_head)
      : plan_(plan),
        parameters_(std::move(parameters)),
        of_head_(std::move(of_head)),
        device_(of_head_.front().device()),
        before_(memory_stats(device_).live_bytes) {}

  void on_result(const char* op, Tensor&, std::span<const Tensor>) override { note(op); }
  void on_gradient(const char* op, size_t, Tensor&) override { note("backward of " + std::string(op)); }

  const json& moments() const { return moments_; }

 private:
  void note(std::string at);

  const MemoryPlan plan_;  // for what is there all the time
  const ParameterList parameters_;
  const std::vector<Tensor> of_head_;
  const Device device_;
  const int64_t before_;  // live bytes where no step is being made
  json moments_ = json::array();
};

void MemoryTrace::note(std::string at) {
  if (moments_.size() >= kMostMoments) return;
  int64_t gradients = 0, head_gradients = 0;
  for (const auto& [name, p] : parameters_) gradients += gradient_bytes(p);
  for (const Tensor& p : of_head_) head_gradients += gradient_bytes(p);
  // The head's own memory comes and goes within one operation, which is told when it has gone. What lives on
  // are the gradients that it made.
  const MemoryStats head_scope = memory_stats(device_, "head");
  const int64_t passing = at == "linear_cross_entropy" ? head_scope.peak_bytes - head_scope.live_bytes : 0;
  const int64_t step = memory_stats(device_).live_bytes - before_,
                head = std::clamp<int64_t>(head_scope.live_bytes - head_gradients, 0,
                                           std::max<int64_t>(step - gradients, 0));
  json moment = {{"at", std::move(at)},
                 {"parameters", plan_.parameters},
                 {"optimizer", plan_.optimizer},
                 {"gradients", gradients},
                 {"activations", std::max<int64_t>(step - gradients - head, 0)},
                 {"head", head + passing}};
  if (moments_.empty() || moments_.back() != moment) moments_.push_back(std::move(moment));
}

json planned(const MemoryPlan& plan) {
  json moments = json::array();
  for (const MemoryPlan::Moment& moment : plan.moments) {
    moments.push_back({{"at", moment.at},
                       {"parameters", plan.parameters},
                       {"optimizer", plan.optimizer},
                       {"gradients", moment.gradients},
                       {"activations", moment.activations},
                       {"head", moment.head}});
  }
  return {{"moments", std::move(moments)}};
}

}  // namespace

void write_memory(const std::string& path, const MemoryPlan& plan) {
  write_file_atomically(path, planned(plan).dump() + "\n");
}

std::function<void(const StepMetrics&)> count_first_step(std::string path, const MemoryPlan& plan,
                                                         ParameterList parameters,
                                                         std::vector<Tensor> of_head) {
  auto trace = std::make_shared<std::optional<MemoryTrace>>();
  trace->emplace(plan, std::move(parameters), std::move(of_head));
  return [trace, plan, path = std::move(path)](const StepMetrics&) {
    if (!*trace) return;
    json memory = planned(plan);
    memory["counted"] = (*trace)->moments();
    write_file_atomically(path, memory.dump() + "\n");
    trace->reset();
  };
}

}  // namespace tapehead
