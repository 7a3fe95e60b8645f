// A hash of names and contents, to notice that something has changed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace tapehead {

/// XXH3 of 128 bits, from the xxHash library: fast, and no protection against people who
/// want two things to look the same. What is added counts with its length and in its order.
class ContentHash {
 public:
  ContentHash();

  void add(std::string_view bytes);
  /// The bytes of a file. The errors of read_file.
  ///   on_read   told after every stretch how many bytes it had
  void add_file(const std::string& path, const std::function<void(int64_t bytes)>& on_read = {});
  /// 32 hexadecimal digits.
  std::string digest() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace tapehead
