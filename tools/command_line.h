// The words after the program's name: commands, their options, and what --help says of them. CLI11 does the
// work; its headers take seconds to compile, so command_line.cc alone includes them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tapehead {

/// An option, a flag, or an argument without dashes. A handle: copies are the same option, which its command
/// owns. What changes it returns it.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option required();
  /// Not both; `name` is an option that the command has already.
  Option excludes(Option other);
  Option excludes(const std::string& name);
  Option needs(Option other);
  /// Of a list: one value each time that it is given, so that what follows may be something else.
  Option one_at_a_time();

  // What --help says: what it takes, the value that it has now, the title under which it stands.
  Option type_name(const std::string& type);
  Option show_default();
  Option group(const std::string& title);

  /// "--n-layer"; of an argument without dashes, "RUN".
  std::string name() const;
  bool is_flag() const;
  /// Whether it has a value from the command line or from set().
  bool given() const;
  /// As text: what was given, else the default that --help shows, which may be "".
  std::vector<std::string> values() const;
  /// One that is given and excludes this one.
  std::optional<Option> contradiction() const;

  /// Gives it values as if they stood on the command line. Throws ValueError, beginning with `source`, if it
  /// does not take them.
  void set(const std::vector<std::string>& values, const std::string& source);

 private:
  CLI::Option* option_;
};

/// A subcommand, or the program. A handle, like Option.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  Command add_command(const std::string& name, const std::string& help);
  /// One of its commands has to follow.
  void require_command();

  /// `value` holds the default, and outlives the command. T: bool, int64_t, uint64_t, double, std::string, a
  /// vector of strings, an optional int64_t, double or std::string; for others, a line in command_line.cc.
  template <typename T>
  Option add_option(const std::string& name, T& value, const std::string& help);
  /// `use` is called with the value as soon as it is read.
  Option add_option_function(const std::string& name, std::function<void(int64_t)> use,
                             const std::string& help);
  /// "!--no-NAME" sets `value` to false.
  Option add_flag(const std::string& name, bool& value, const std::string& help);
  /// show_default(), for all options that are added from here on.
  void show_defaults_from_here();

  /// What --help ends with.
  void footer(const std::string& text);
  /// Called once all options have their values; throws its errors.
  void callback(std::function<void()> work);

  /// As the user called it.
  std::string name() const;
  /// With those that stand before it, as words of a shell: "bin/tapehead train".
  std::string invocation() const;
  /// In the order they were added, without --help.
  std::vector<Option> options() const;
  std::optional<Option> find_option(const std::string& name) const;
  /// Whether there is such an option, and it is given.
  bool given(const std::string& option) const;

 private:
  CLI::App* app_;
};

/// The program's command and all below it.
class CommandLine {
 public:
  /// `version` is what --version prints.
  CommandLine(const std::string& description, const std::string& version);
  ~CommandLine();

  /// To add commands to.
  Command program() const;

  /// Takes main's arguments and runs the command that they name, or prints the help or version that they ask
  /// for. Throws ValueError on words that it does not know, and what the command throws.
  void run(int argc, const char* const* argv);

 private:
  std::unique_ptr<CLI::App> program_;
};

}  // namespace tapehead
