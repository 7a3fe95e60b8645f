// Tokens that are found in a text whole, before it is cut into pieces: special ones, and others that were
// added to a vocabulary after its training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tapehead {

/// As in the list "added_tokens" of a tokenizer.json.
struct AddedToken {
  int32_t id;
  std::string content;      ///< UTF-8
  bool special = false;     ///< stands for no text: the end of a document, a turn of a dialogue
  bool normalized = false;  ///< is looked for in the text after normalisation, and not before
};

/// Finds some tokens in texts. Immutable; any number of threads may use one.
class AddedTokenFinder {
 public:
  struct Match {
    size_t begin, size;
    int32_t id;
  };

  AddedTokenFinder() = default;

  /// The contents must differ and not be empty.
  explicit AddedTokenFinder(const std::vector<AddedToken>& tokens);

  bool empty() const { return entries_.empty(); }

  /// The leftmost token in `text`, the longest if several begin there.
  std::optional<Match> find(std::string_view text) const;

 private:
  static constexpr int64_t kNone = -1;
  struct Entry {
    std::string content;
    int32_t id;
    int64_t prefix;  // the entry of the longest other content that this one begins with
  };

  const Entry* longest_at_front(std::string_view text) const;

  std::vector<Entry> entries_;  // by content
  std::string first_bytes_;
};

}  // namespace tapehead
