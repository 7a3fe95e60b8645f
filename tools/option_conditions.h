// Options that mean something under some values of others alone: elsewhere, where they would do nothing, they
// are errors.
#pragma once

#include <vector>

#include "tapehead/tools/command_line.h"

namespace tapehead {

struct OptionCondition;

/// The options of a command that were given so far and need something of others. To be made before a config
/// file and a preset add theirs, which are nobody's wish in particular, and checked once all options have
/// their values.
class GivenOptions {
 public:
  explicit GivenOptions(const Command& command);

  /// Throws ValueError that names the option that would do nothing, and what it needs.
  void check_effects() const;

 private:
  Command command_;
  std::vector<const OptionCondition*> conditions_;
};

}  // namespace tapehead
