// The arguments of linear_cross_entropy as command-line options, for the commands that run it alone.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tapehead/ops/linear_cross_entropy_plan.h"
#include "tapehead/tools/command_line.h"

namespace tapehead {

/// The numbers and words among LinearCrossEntropyArgs and LinearCrossEntropyOptions.
struct HeadArguments {
  std::string reduction = "mean";
  std::optional<int64_t> ignore_index;
  double label_smoothing = 0;
  std::optional<double> softcap;
  double logit_scale = 1;
  double z_loss = 0;
  std::optional<double> normalizer;
  std::string loss_dtype;  ///< empty: the input's

  bool reference = false;
  std::string acc_policy = "auto";
  std::string acc_dtype;  ///< empty: chosen by policy
  /// "none": one chunk. Left out: the rows below, or "throughput" where they are left out, too.
  std::optional<std::string> chunking_method;
  std::optional<int64_t> batch_chunk_size;
  bool allow_retain_graph = false;
  bool recompute = false;
  std::string gradient_filter = "none";
  uint64_t filter_seed = 0;

  /// Adds all of them to `command`.
  void add_options(Command command);
  /// As the op takes them; tensors are left out. Throws what the options' constructor does.
  LinearCrossEntropyArgs args() const;
  /// With a filter, its statistics, and random numbers from `numbers`, a generator of filter_seed.
  LinearCrossEntropyArgs args(Generator& numbers) const;
};

/// The input's dtype by the text of --dtype. Throws ValueError unless it is floating.
DType parse_input_dtype(const std::string& text);

/// Which of input, weight and bias a comma-separated list names. Throws ValueError on another name.
struct FrozenTensors {
  bool input = false, weight = false, bias = false;

  static FrozenTensors parse(const std::string& list);
};

/// Options with every choice made, as JSON: the fields of ResolvedLinearCrossEntropyOptions.
nlohmann::ordered_json to_json(const ResolvedLinearCrossEntropyOptions& options);

/// What the filter of a pass did, as JSON.
nlohmann::ordered_json to_json(const GradientFilterStats& stats);

}  // namespace tapehead
