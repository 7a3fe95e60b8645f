// Typed errors. A message begins with the op's name in brackets, says which rule was broken, and carries the
// offending values and shapes; the name of the type itself is added where an error is printed.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace tapehead {

/// A value or a shape that the called function does not accept.
struct ValueError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// A dtype that the called function does not accept.
struct TypeError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// A call that is not legal in the present state: a second backward, an input changed in place, and the like.
struct RuntimeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The machine refused: a file that cannot be written, a full disk, no memory.
struct SystemError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A device has no memory left for what was wanted. Whatever was live still is, and the device can be used.
struct OutOfMemoryError : SystemError {
  using SystemError::SystemError;
};

/// Throws E with the formatted message. fmt's rules; Shape, DType and Device can be formatted.
template <class E, class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> message, Args&&... args) {
  throw E(fmt::format(message, std::forward<Args>(args)...));
}

/// Throws E with the formatted message unless `ok`. The message is formatted only then, but its arguments are
/// evaluated always: what exists only on failure goes into an `if` with fail().
template <class E, class... Args>
void check(bool ok, fmt::format_string<Args...> message, Args&&... args) {
  if (!ok) [[unlikely]] {
    fail<E>(message, std::forward<Args>(args)...);
  }
}

/// For fmt::formatter of our types: "{}" and no options.
struct PlainFormatter {
  constexpr auto parse(fmt::format_parse_context& ctx) { return ctx.begin(); }
  /// Appends `text`. fmt::format_to would do, and have every file compile all of fmt's formatting of numbers.
  static auto write(std::string_view text, fmt::format_context& ctx) {
    return std::copy(text.begin(), text.end(), ctx.out());
  }
};

}  // namespace tapehead
