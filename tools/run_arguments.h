// What every command that trains takes, whatever it trains.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "tapehead/models/run_config.h"
#include "tapehead/tools/command_line.h"
#include "tapehead/tools/compute_options.h"

namespace tapehead {

struct RunArguments {
  std::string out;  ///< folder of a new run
  std::string config_file = {};
  std::string resume = {};  ///< folder of a run to go on with; empty: a new one is begun
  ComputeOptions compute{};
  MemoryLimit memory_limit = {};
  int64_t log_every = 0;

  /// Adds --out, with its value now as the default, and --config.
  void add_folder_options(Command command);

  /// Adds options for fields of `config`, which have the defaults that they have there, but a checkpoint
  /// every 250 steps; then --resume, which excludes all that the command has so far, since that describes a
  /// new run, but for the options `allowed`; and then what may be given in either case, --steps among it.
  void add_run_options(Command command, RunConfig& config, std::initializer_list<std::string> allowed = {});

  /// Of a new run: takes what the command line left open from the config file, and what that leaves open from
  /// `preset`, unless it is empty. Throws ValueError that names the options which contradict each other or
  /// would do nothing, a key that is no option, a value that cannot be.
  void settle(Command command, const std::string& preset = "");
};

}  // namespace tapehead
