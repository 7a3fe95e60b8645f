// A run's history: a file of JSON objects, one a line, and the picture of it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tapehead/models/training_run.h"
#include "tapehead/tools/json_lines.h"
#include "tapehead/tools/svg_chart.h"

namespace tapehead {

/// Appends to a history.
class MetricsLog {
 public:
  /// Keeps of an existing file the lines of steps up to `step`, and of evaluations up to `evaluated_step`.
  /// Throws SystemError if the machine refuses.
  MetricsLog(std::string path, int64_t step, int64_t evaluated_step);

  /// {"step":7,"loss":8.9,"smoothed_loss":9.1,"lr":0.0001,"grad_norm":1.2,"tokens":2048,"seconds":0.1,
  /// "epoch":0}, and "skipped":true where the update was not made.
  void add(const StepMetrics& metrics);
  /// {"step":100,"held_out_loss":5.9,"bits_per_byte":2.1,"held_out_accuracy":0.2,"held_out_entropy":5.5,
  /// "tokens":50000,"seconds":1.5}; without a tokenizer, whose bytes are counted as 0, there are no bits.
  void add(const Evaluation& evaluation, int64_t bytes);

 private:
  JsonLinesLog lines_;
};

/// The points of a history, by step. Lines that are no such object are passed over.
struct History {
  std::vector<Point> training;
  std::vector<Point> held_out;
};
History read_history(const std::string& path);

/// The picture of a history. `subtitle` tells of what; `unit` is what a loss is per: "token", "row".
std::string loss_chart(const History& history, const std::string& subtitle, const std::string& unit);

}  // namespace tapehead
