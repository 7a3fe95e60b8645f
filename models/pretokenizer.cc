// The rules by hand, in time linear in the text. PCRE2 with the regular expressions is the tests' oracle;
// here it would take another Unicode's letters (character_class.h) and two to three times as long.
#include "tapehead/models/pretokenizer.h"

#include "tapehead/models/character_class.h"
#include "tapehead/models/utf8.h"

namespace tapehead {
namespace {

using enum CharacterClass;

// A character's class, and how many bytes it takes: none at the end of the text and where it is no UTF-8.
struct Character {
  CharacterClass kind;
  size_t size;

  bool ends() const { return size == 0; }
  bool is(CharacterClass wanted) const { return kind == wanted && !ends(); }
  bool is_white() const { return is(space) || is(newline); }
};

class Text {
 public:
  Text(std::string_view bytes, const CharacterClasses& classes) : bytes_(bytes), classes_(classes) {}

  size_t size() const { return bytes_.size(); }
  std::string_view piece(size_t begin, size_t end) const { return bytes_.substr(begin, end - begin); }

  // 0 beyond the end.
  char byte(size_t place) const { return place < bytes_.size() ? bytes_[place] : '\0'; }

  Character at(size_t place) const {
    if (place >= bytes_.size()) {
      return {other, 0};
    }
    const auto byte = static_cast<unsigned char>(bytes_[place]);
    if (byte < 0x80) [[likely]] {
      return {classes_[byte], 1};
    }
    const Utf8Character character = first_character(bytes_.substr(place));
    return {classes_[character.code], character.size};
  }

  // The end of the run of a class that stands at `place`.
  size_t skip(CharacterClass kind, size_t place) const {
    for (Character next = at(place); next.is(kind); next = at(place)) {
      place += next.size;
    }
    return place;
  }

 private:
  std::string_view bytes_;
  const CharacterClasses& classes_;
};

// 's|'t|'re|'ve|'m|'ll|'d: how many bytes of it stand at `place`, 0 if none does. `any_case` is (?i:…), for
// which Unicode has a third s, the long one, U+017F.
size_t contraction(const Text& text, size_t place, bool any_case) {
  if (text.byte(place) != '\'') {
    return 0;
  }
  const auto letter_at = [&](size_t i) { return static_cast<char>(text.byte(i) | (any_case ? 0x20 : 0)); };
  if (any_case && text.byte(place + 1) == '\xC5' && text.byte(place + 2) == '\xBF') {
    return 3;
  }
  switch (letter_at(place + 1)) {
    case 's':
    case 't':
    case 'm':
    case 'd': return 2;
    case 'r':
    case 'v': return letter_at(place + 2) == 'e' ? 3 : 0;
    case 'l': return letter_at(place + 2) == 'l' ? 3 : 0;
    default: return 0;
  }
}

// \s+(?!\S)|\s+ from the white space at `begin`: the run without its last character, which goes with what
// comes after. The run is whole where nothing comes, and when it is one character.
size_t white_end(const Text& text, size_t begin, bool whole_before_numbers) {
  size_t place = begin;
  size_t last = begin;
  Character next = text.at(place);
  while (next.is_white()) {
    last = place;
    place += next.size;
    next = text.at(place);
  }
  const bool whole = next.ends() || last == begin || (whole_before_numbers && next.is(number));
  return whole ? place : last;
}

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// With `digits`, as if the text ended before and after each \p{N}.
template <bool digits>
size_t gpt2_end(const Text& text, size_t begin) {
  if (const size_t size = contraction(text, begin, false)) {
    return begin + size;
  }
  const size_t word = begin + (text.byte(begin) == ' ');
  const Character first = text.at(word);
  if (digits && first.is(number)) {
    return begin + (word == begin ? first.size : 1);
  }
  if (first.ends() || first.is_white()) {
    return white_end(text, begin, digits);
  }
  return text.skip(first.kind, word + first.size);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
// \s*[\r\n]+|\s+(?!\S)|\s+, with numbers of at most `digits`.
template <int digits>
size_t llama3_end(const Text& text, size_t begin) {
  if (const size_t size = contraction(text, begin, true)) {
    return begin + size;
  }
  const Character first = text.at(begin);
  if (first.is(letter)) {
    return text.skip(letter, begin + first.size);
  }
  if (first.is(number)) {
    size_t place = begin + first.size;
    for (int count = 1; count < digits && text.at(place).is(number); ++count) {
      place += text.at(place).size;
    }
    return place;
  }
  if (!first.is(newline) && text.at(begin + first.size).is(letter)) {
    return text.skip(letter, begin + first.size);
  }
  const size_t symbols = begin + (text.byte(begin) == ' ');
  if (text.at(symbols).is(other)) {
    return text.skip(newline, text.skip(other, symbols));
  }
  size_t after_newline = begin;
  size_t place = begin;
  for (Character next = first; next.is_white(); next = text.at(place)) {
    place += next.size;
    if (next.is(newline)) {
      after_newline = place;
    }
  }
  return after_newline > begin ? after_newline : white_end(text, begin, false);
}

template <class End>
void cut(const Text& text, End&& end_of, const std::function<void(std::string_view)>& take) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.at(begin).ends() ? begin + 1 : end_of(text, begin);
    take(text.piece(begin, end));
    begin = end;
  }
}

}  // namespace

void for_each_piece(std::string_view bytes, SplittingRule rule,
                    const std::function<void(std::string_view)>& take) {
  const bool digits = rule == SplittingRule::smollm;
  const Text text(bytes, digits ? character_classes_of_digits() : character_classes());
  switch (rule) {
    case SplittingRule::gpt2: return cut(text, gpt2_end<false>, take);
    case SplittingRule::smollm: return cut(text, gpt2_end<true>, take);
    case SplittingRule::llama3: return cut(text, llama3_end<3>, take);
    case SplittingRule::qwen2: return cut(text, llama3_end<1>, take);
  }
}

}  // namespace tapehead
