// The options of `tapehead train`: command line, config file, preset.
#pragma once

#include <string>
#include <vector>

#include "tapehead/models/train_config.h"
#include "tapehead/tools/command_line.h"
#include "tapehead/tools/run_arguments.h"
#include "tapehead/tools/run_data.h"

namespace tapehead {

struct TrainArguments {
  DataOptions data;
  TrainConfig config;
  RunArguments run{.out = "runs/train"};
  std::string dtype = "f32";
  int64_t accumulate = 1;
  std::string preset;
  std::string from;                         ///< folder of a run, or a checkpoint in it
  bool capture = false;                     ///< Trainer::capture_steps()
  std::vector<std::string> sample_prompts;  ///< texts that the model goes on with at every evaluation

  /// Adds all of them. What describes a new run excludes --resume.
  void add_options(Command train);

  /// What the command line left open is taken from the config file, and what that leaves open from the
  /// preset. Then `config` is complete but for what the data decide. Throws ValueError that names the options
  /// which contradict each other, a key that is no option, a value that cannot be.
  void settle(Command train);
};

}  // namespace tapehead
