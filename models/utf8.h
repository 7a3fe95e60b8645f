// UTF-8, a character at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace tapehead {

/// A code point and the bytes that it took; both 0 where no valid character stands.
struct Utf8Character {
  char32_t code;
  size_t size;
};

/// The character that `text`, which is not empty, begins with. Valid is what Unicode's table 3-7 lists: no
/// surrogates, nothing above U+10FFFF, and no more bytes than a character needs.
inline Utf8Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto continued = [&](size_t i) { return i < text.size() && byte(i) >> 6 == 2; };
  const char32_t lead = byte(0);
  if (lead < 0x80) {
    return {lead, 1};
  }
  if (lead < 0xC2 || lead > 0xF4 || !continued(1)) {
    return {0, 0};
  }
  if (lead < 0xE0) {
    return {(lead & 0x1F) << 6 | (byte(1) & 0x3Fu), 2};
  }
  if (!continued(2)) {
    return {0, 0};
  }
  if (lead < 0xF0) {
    const char32_t code = (lead & 0xF) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu);
    const bool valid = code >= 0x800 && code >> 11 != 0xD800 >> 11;
    return valid ? Utf8Character{code, 3} : Utf8Character{0, 0};
  }
  if (!continued(3)) {
    return {0, 0};
  }
  const char32_t code =
      (lead & 7) << 18 | (byte(1) & 0x3Fu) << 12 | (byte(2) & 0x3Fu) << 6 | (byte(3) & 0x3Fu);
  const bool valid = 0x10000 <= code && code <= 0x10FFFF;
  return valid ? Utf8Character{code, 4} : Utf8Character{0, 0};
}

/// How many bytes of `text` are left if a character that has only begun is taken off its end. Bytes that no
/// further ones would make valid stay.
inline size_t size_of_whole_characters(std::string_view text) {
  for (size_t tail = 1; tail <= std::min<size_t>(3, text.size()); ++tail) {
    const auto lead = static_cast<unsigned char>(text[text.size() - tail]);
    if (lead >> 6 != 2) {
      const size_t size = lead < 0xC2 || lead > 0xF4 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
      return tail < size ? text.size() - tail : text.size();
    }
  }
  return text.size();
}

}  // namespace tapehead
