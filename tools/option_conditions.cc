#include "tapehead/tools/option_conditions.h"

#include <cstdlib>
#include <string>

#include "tapehead/core/error.h"

namespace tapehead {

namespace {

/// The values that a command's options have, as text.
class Values {
 public:
  explicit Values(const Command& command) : command_(command) {}

  /// Empty where the command has no such option, or that has no value.
  std::string operator[](const char* name) const {
    const std::optional<Option> option = command_.find_option(name);
    return option ? option->values().front() : "";
  }
  /// 0 without a value.
  double number(const char* name) const { return std::strtod((*this)[name].c_str(), nullptr); }

 private:
  const Command command_;
};

bool has_momentum(const Values& v) { return v["--optimizer"] != "adamw"; }
bool has_moments(const Values& v) { return v["--optimizer"] != "sgd"; }
bool is_llama(const Values& v) { return v["--architecture"] == "llama"; }
bool measures(const Values& v) {
  return v["--tokens"].empty() ? v.number("--held-out") > 0 : !v["--held-out-tokens"].empty();
}

constexpr const char* kMeasures = "something held out to measure on";

}  // namespace

struct OptionCondition {
  const char* option;
  const char* needed;
  bool (*holds)(const Values&);
};

static constexpr OptionCondition kConditions[] = {
    {"--n-kv-head", "--architecture llama", is_llama},
    {"--rope-theta", "--architecture llama", is_llama},
    {"--tied-head", "--architecture llama", is_llama},
    {"--decay-steps", "--schedule wsd", [](const Values& v) { return v["--schedule"] == "wsd"; }},
    {"--min-lr", "a --schedule that falls", [](const Values& v) { return v["--schedule"] != "constant"; }},
    {"--momentum", "--optimizer sgd or muon", has_momentum},
    {"--nesterov", "--optimizer sgd or muon", has_momentum},
    {"--nesterov", "--momentum above 0", [](const Values& v) { return v.number("--momentum") > 0; }},
    {"--beta1", "--optimizer adamw or muon", has_moments},
    {"--beta2", "--optimizer adamw or muon", has_moments},
    {"--epsilon", "--optimizer adamw or muon", has_moments},
    {"--head-chunking-method", "--head-batch-chunk-size 0",
     [](const Values& v) { return v.number("--head-batch-chunk-size") == 0; }},
    {"--eval-every", kMeasures, measures},
    {"--keep-best", kMeasures, measures},
    {"--sample-prompt", kMeasures, measures},
    {"--split-seed", kMeasures, measures},
};

GivenOptions::GivenOptions(const Command& command) : command_(command) {
  for (const OptionCondition& condition : kConditions) {
    if (command.given(condition.option)) conditions_.push_back(&condition);
  }
}

void GivenOptions::check_effects() const {
  const Values values(command_);
  for (const OptionCondition* condition : conditions_) {
    check<ValueError>(condition->holds(values), "{} needs {}: it would do nothing", condition->option,
                      condition->needed);
  }
}

}  // namespace tapehead
