#include "tapehead/models/character_class.h"

#include <memory>
#include <span>

#include "tapehead/models/character_ranges.h"

namespace tapehead {
namespace {

void fill(std::span<const CharacterRange> ranges, CharacterClass value, CharacterClasses* classes) {
  for (const auto& [first, last] : ranges) {
    for (char32_t code = first; code <= last; ++code) {
      (*classes)[code] = value;
    }
  }
}

std::unique_ptr<CharacterClasses> make_classes() {
  auto classes = std::make_unique<CharacterClasses>();  // all `other`
  fill(kLetters, CharacterClass::letter, classes.get());
  fill(kNumbers, CharacterClass::number, classes.get());
  fill(kSpaces, CharacterClass::space, classes.get());
  (*classes)['\r'] = (*classes)['\n'] = CharacterClass::newline;
  return classes;
}

}  // namespace

const CharacterClasses& character_classes() {
  static const std::unique_ptr<const CharacterClasses> table = make_classes();
  return *table;
}

const CharacterClasses& character_classes_of_digits() {
  static const std::unique_ptr<const CharacterClasses> table = [] {
    auto classes = make_classes();
    fill(kNewerNumbers, CharacterClass::number, classes.get());
    return classes;
  }();
  return *table;
}

}  // namespace tapehead
