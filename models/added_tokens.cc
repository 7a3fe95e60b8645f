#include "tapehead/models/added_tokens.h"

#include <algorithm>

namespace tapehead {

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens) {
  for (const AddedToken& token : tokens) {
    entries_.push_back({token.content, token.id, kNone});
  }
  std::ranges::sort(entries_, {}, &Entry::content);
  for (int64_t i = 0; i < std::ssize(entries_); ++i) {
    // All that lies between a string and its prefix in this order begins with the prefix, too.
    int64_t prefix = i - 1;
    while (prefix != kNone && !entries_[i].content.starts_with(entries_[prefix].content)) {
      prefix = entries_[prefix].prefix;
    }
    entries_[i].prefix = prefix;
    if (first_bytes_.empty() || first_bytes_.back() != entries_[i].content[0]) {
      first_bytes_ += entries_[i].content[0];
    }
  }
}

const AddedTokenFinder::Entry* AddedTokenFinder::longest_at_front(std::string_view text) const {
  const auto after = std::ranges::upper_bound(
      entries_, text, {}, [](const Entry& entry) { return std::string_view(entry.content); });
  int64_t candidate = after - entries_.begin() - 1;
  while (candidate != kNone && !text.starts_with(entries_[candidate].content)) {
    candidate = entries_[candidate].prefix;
  }
  return candidate == kNone ? nullptr : &entries_[candidate];
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::find(std::string_view text) const {
  for (size_t begin = text.find_first_of(first_bytes_); begin != std::string_view::npos;
       begin = text.find_first_of(first_bytes_, begin + 1)) {
    if (const Entry* entry = longest_at_front(text.substr(begin))) {
      return Match{begin, entry->content.size(), entry->id};
    }
  }
  return std::nullopt;
}

}  // namespace tapehead
