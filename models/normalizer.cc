#include "tapehead/models/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>

#include "tapehead/core/error.h"
#include "tapehead/models/character_ranges.h"
#include "tapehead/models/utf8.h"

namespace tapehead {
namespace {

struct Free {
  void operator()(utf8proc_uint8_t* bytes) const { std::free(bytes); }
};

// Valid UTF-8 alone.
void append_normalized(std::string_view text, std::string* out) {
  utf8proc_uint8_t* bytes = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), std::ssize(text), &bytes,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, Free> owner(bytes);
  check<SystemError>(size >= 0, "[tokenizer] utf8proc cannot normalise {} bytes: {}", text.size(),
                     utf8proc_errmsg(size));
  out->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

// Below U+0300 every character is normal as it is, alone and after others, and takes at most two bytes, the
// first of them less than this one.
constexpr unsigned char kFirstByteOfU0300 = 0xCC;

bool is_below_u0300(char byte) { return static_cast<unsigned char>(byte) < kFirstByteOfU0300; }

// A mark that utf8proc knows and the `tokenizers` package, whose normal form is Unicode 9.0's, does not.
// There it stands alone, combines with nothing, and nothing passes it.
bool is_newer_mark(char32_t code) {
  if (utf8proc_get_property(static_cast<utf8proc_int32_t>(code))->combining_class == 0) {
    return false;
  }
  const auto after = std::ranges::upper_bound(kCombining, code, {}, &CharacterRange::first);
  return after == std::begin(kCombining) || std::prev(after)->last < code;
}

// The end of the characters from U+0300 on that stand at `place` and may be normalised together.
size_t end_of_others(std::string_view text, size_t place) {
  while (place < text.size() && !is_below_u0300(text[place])) {
    const Utf8Character character = first_character(text.substr(place));
    if (character.size == 0 || is_newer_mark(character.code)) {
      break;
    }
    place += character.size;
  }
  return place;
}

}  // namespace

std::string normalize_nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto found = std::find_if_not(text.begin(), text.end(), is_below_u0300);
    const auto others = static_cast<size_t>(found - text.begin());
    const size_t end = end_of_others(text, others);
    // The character before may be what they compose with.
    size_t begin = others;
    for (size_t size = 1; size <= std::min<size_t>(2, others) && begin == others; ++size) {
      if (first_character(text.substr(others - size)).size == size) {
        begin = others - size;
      }
    }
    out += text.substr(0, begin);
    if (end > others) {
      append_normalized(text.substr(begin, end - begin), &out);
      text.remove_prefix(end);
    } else if (end < text.size()) {  // a newer mark, or a byte that is no UTF-8
      const size_t size = std::max<size_t>(first_character(text.substr(end)).size, 1);
      out += text.substr(begin, end + size - begin);
      text.remove_prefix(end + size);
    } else {
      out += text.substr(begin);
      text = {};
    }
  }
  return out;
}

}  // namespace tapehead
