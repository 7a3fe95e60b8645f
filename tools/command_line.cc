#include "tapehead/tools/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <type_traits>

#include "tapehead/core/error.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/nearest_name.h"

namespace tapehead {

namespace {

/// Help that shows of an option its name, what it takes, and its default.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(30); }
  // Of a flag that sets false, CLI11's name says so: "--no-cache{false}".
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    const std::string name = CLI::Formatter::make_option_name(option, is_positional);
    return name.substr(0, name.find('{'));
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";
    std::string text = " " + option->get_type_name();
    if (!option->get_default_str().empty()) text += " [" + option->get_default_str() + "]";
    return text;
  }
};

// Defaults as they would be typed, where CLI11 has 1 for true and [] for an empty list.
std::string typed(bool value) { return value ? "true" : "false"; }
std::string typed(const std::vector<std::string>& list) { return fmt::format("{}", fmt::join(list, " ")); }

// ---- What is said of words that make no sense

/// The command that was named last.
const CLI::App* named_command(const CLI::App* program) {
  const auto inner = program->get_subcommands();
  return inner.empty() ? program : named_command(inner.back());
}

std::string describe_stranger(const std::string& word, const CLI::App& command) {
  const std::string name = word.substr(0, word.find('='));
  std::vector<std::string> names;
  if (name.starts_with("-")) {
    for (const CLI::Option* option : command.get_options()) names.push_back(option->get_name());
    return fmt::format("{} has no option {}; did you mean {}?", command.get_name(), name,
                       nearest_name(name, names));
  }
  for (const CLI::App* inner : command.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(inner->get_name());
  if (names.empty())
    return fmt::format("\"{}\" is one word more than {} takes; --help tells more", word, command.get_name());
  return fmt::format("there is no command {}; did you mean {}?", word, nearest_name(word, names));
}

/// A line that says what to do.
std::string describe(const CLI::ParseError& error, const CLI::App& program) {
  const CLI::App& command = *named_command(&program);
  const std::vector<std::string> strangers = program.remaining(true);
  if (!strangers.empty()) return describe_stranger(strangers.front(), command);
  for (const CLI::Option* option : command.get_options()) {
    const size_t times = option->count(), most = static_cast<size_t>(option->get_items_expected_max());
    if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) && most > 0 && times > most)
      return fmt::format("{} is given {} times, and may be once", option->get_name(), times);
  }
  return fmt::format("{}; --help tells more", error.what());
}

}  // namespace

// ---- Option

Option Option::required() { return Option(option_->required()); }
Option Option::excludes(Option other) { return Option(option_->excludes(other.option_)); }
Option Option::excludes(const std::string& name) { return Option(option_->excludes(name)); }
Option Option::needs(Option other) { return Option(option_->needs(other.option_)); }
Option Option::one_at_a_time() { return Option(option_->allow_extra_args(false)); }
Option Option::type_name(const std::string& type) { return Option(option_->type_name(type)); }
Option Option::show_default() { return Option(option_->capture_default_str()); }
Option Option::group(const std::string& title) { return Option(option_->group(title)); }

std::string Option::name() const { return option_->get_name(); }
bool Option::is_flag() const { return option_->get_items_expected_max() == 0; }
bool Option::given() const { return option_->count() > 0; }

std::vector<std::string> Option::values() const {
  return given() ? option_->reduced_results() : std::vector{option_->get_default_str()};
}

std::optional<Option> Option::contradiction() const {
  for (CLI::Option* other : option_->get_excludes()) {
    if (other->count() > 0) return Option(other);
  }
  return std::nullopt;
}

void Option::set(const std::vector<std::string>& values, const std::string& source) {
  for (const std::string& value : values) option_->add_result(value);
  try {
    option_->run_callback();
  } catch (const CLI::Error& e) {
    fail<ValueError>("{}: {}", source, e.what());
  }
}

// ---- Command

Command Command::add_command(const std::string& name, const std::string& help) {
  return Command(app_->add_subcommand(name, help));
}

void Command::require_command() { app_->require_subcommand(1); }

template <typename T>
Option Command::add_option(const std::string& name, T& value, const std::string& help) {
  CLI::Option* option = app_->add_option(name, value, help);
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::vector<std::string>>) {
    option->default_function([&value] { return typed(value); });
    if (!option->get_default_str().empty()) option->capture_default_str();
  }
  return Option(option);
}

template Option Command::add_option(const std::string&, bool&, const std::string&);
template Option Command::add_option(const std::string&, int64_t&, const std::string&);
template Option Command::add_option(const std::string&, uint64_t&, const std::string&);
template Option Command::add_option(const std::string&, double&, const std::string&);
template Option Command::add_option(const std::string&, std::string&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<std::string>&, const std::string&);
template Option Command::add_option(const std::string&, std::optional<int64_t>&, const std::string&);
template Option Command::add_option(const std::string&, std::optional<double>&, const std::string&);
template Option Command::add_option(const std::string&, std::optional<std::string>&, const std::string&);

Option Command::add_option_function(const std::string& name, std::function<void(int64_t)> use,
                                    const std::string& help) {
  return Option(app_->add_option_function<int64_t>(name, use, help));
}

Option Command::add_flag(const std::string& name, bool& value, const std::string& help) {
  return Option(app_->add_flag(name, value, help));
}

void Command::show_defaults_from_here() { app_->option_defaults()->always_capture_default(); }
void Command::footer(const std::string& text) { app_->footer(text); }
void Command::callback(std::function<void()> work) { app_->callback(std::move(work)); }

std::string Command::name() const { return app_->get_name(); }

std::string Command::invocation() const {
  CLI::App* outer = app_->get_parent();
  return (outer ? Command(outer).invocation() + " " : "") + shell_quote(name());
}

std::vector<Option> Command::options() const {
  std::vector<Option> list;
  for (CLI::Option* option : app_->get_options()) {
    if (option != app_->get_help_ptr()) list.emplace_back(option);
  }
  return list;
}

std::optional<Option> Command::find_option(const std::string& name) const {
  CLI::Option* option = app_->get_option_no_throw(name);
  return option ? std::optional<Option>(option) : std::nullopt;
}

bool Command::given(const std::string& option) const {
  const std::optional<Option> found = find_option(option);
  return found && found->given();
}

// ---- CommandLine

CommandLine::CommandLine(const std::string& description, const std::string& version)
    : program_(std::make_unique<CLI::App>(description)) {
  program_->set_version_flag("--version", version, "print the program's version");
  program_->require_subcommand(0, 1);  // none is reported by run(), after words that are no subcommand
  program_->formatter(std::make_shared<HelpFormatter>());
}

CommandLine::~CommandLine() = default;

Command CommandLine::program() const { return Command(program_.get()); }

void CommandLine::run(int argc, const char* const* argv) {
  try {
    program_->parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) fail<ValueError>("{}", describe(e, *program_));
    program_->exit(e);  // prints what was asked for
    return;
  }
  check<ValueError>(!program_->get_subcommands().empty(), "a subcommand is required; --help lists them");
}

}  // namespace tapehead
