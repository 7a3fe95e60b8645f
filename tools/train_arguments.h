// The options of `tapehead train`: command line, config file, preset.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tapehead/models/train_config.h"
#include "tapehead/tools/command_line.h"
#include "tapehead/tools/compute_options.h"
#include "tapehead/tools/run_folder.h"

namespace tapehead {

struct TrainArguments {
  DataOptions data;
  TrainConfig config;
  std::string dtype = "f32";
  int64_t accumulate = 1;
  std::string preset, config_file;
  std::string out = "runs/train";
  std::string from;  ///< folder of a run, or a checkpoint in it
  std::string resume;
  std::string memory_limit;
  ComputeOptions compute;
  bool capture = false;  ///< Trainer::capture_steps()
  int64_t log_every = 0;
  std::vector<std::string> sample_prompts;  ///< texts that the model goes on with at every evaluation

  /// Adds all of them. What describes a new run excludes --resume.
  void add_options(Command train);

  /// What the command line left open is taken from the config file, and what that leaves open from the
  /// preset. Then `config` is complete but for what the data decide. Throws ValueError that names the options
  /// which contradict each other, a key that is no option, a value that cannot be.
  void settle(Command train);

  /// Of --memory-limit. Throws ValueError unless it is a size.
  std::optional<int64_t> memory_bytes() const;
};

}  // namespace tapehead
