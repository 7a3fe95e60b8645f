// What the splitting rules know of a character.
#pragma once

#include <array>
#include <cstdint>

namespace tapehead {

/// Unicode's general categories L and N, carriage return and line feed, the rest of White_Space, all else.
enum class CharacterClass : uint8_t { other, letter, number, newline, space };

using CharacterClasses = std::array<CharacterClass, 0x110000>;

/// The class of every code point by Unicode 16.0: a table of this program's own, because a tokenizer's ids
/// must not depend on which Unicode the machine's libraries know.
const CharacterClasses& character_classes();

/// The same with the numbers of Unicode 17.0, which the `tokenizers` package's step Digits knows.
const CharacterClasses& character_classes_of_digits();

}  // namespace tapehead
