// The memory of a step as counted after every operation of it; the plan (memory_report.h) is held against it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tapehead/core/tape_observer.h"
#include "tapehead/models/language_model.h"

namespace tapehead {

/// While it lives, takes note after every operation of what the model's device holds. Changes nothing, and
/// costs a lookup for each operation. Of a step in very many parts, the first ones are noted.
class MemoryTrace final : public TapeObserver {
 public:
  /// To be made between two steps. `parameters` and `optimizer`: bytes that are there all the time, of a
  /// MemoryPlan.
  MemoryTrace(const LanguageModel& model, int64_t parameters, int64_t optimizer);

  void on_result(const char* op, Tensor&, std::span<const Tensor>) override { note(op); }
  void on_gradient(const char* op, size_t, Tensor&) override { note("backward of " + std::string(op)); }

  /// [{"at":"embedding","parameters":1024,...}, ...], with the classes of a MemoryPlan; neighbours that are
  /// alike are one.
  const nlohmann::ordered_json& moments() const { return moments_; }

 private:
  void note(std::string at);

  const LanguageModel& model_;
  int64_t parameters_, optimizer_;
  int64_t before_;  // live bytes where no step is being made
  nlohmann::ordered_json moments_ = nlohmann::ordered_json::array();
};

}  // namespace tapehead
