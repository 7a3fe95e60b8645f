// Options that mean something under some values of others alone: elsewhere they would do nothing, which is an error.
#pragma once

#include <vector>

namespace CLI {
class App;
}

namespace tapehead {

struct OptionCondition;

/// The options of a command that were given so far and need something of others. To be made before a config file and a preset
/// add theirs, which are nobody's wish in particular, and checked once all options have their values.
class GivenOptions {
 public:
  explicit GivenOptions(const CLI::App& command);

  /// Throws ValueError that names the option that would do nothing, and what it needs.
  void check_effects() const;

 private:
  const CLI::App& command_;
  std::vector<const OptionCondition*> conditions_;
};

}  // namespace tapehead
