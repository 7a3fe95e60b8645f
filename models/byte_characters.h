// GPT-2's files hold bytes as printable characters, one each.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tapehead {

/// The character of each byte: the printable ones of Latin-1 stand for themselves, and the others become
/// U+0100 and on, in order (bytes_to_unicode in GPT-2's encoder.py).
constexpr std::array<uint16_t, 256> kByteCharacters = [] {
  std::array<uint16_t, 256> characters{};
  uint16_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        ('!' <= byte && byte <= '~') || (0xA1 <= byte && byte <= 0xAC) || (0xAE <= byte && byte <= 0xFF);
    characters[byte] = printable ? static_cast<uint16_t>(byte) : next++;
  }
  return characters;
}();

/// The token of each byte in a vocabulary that GPT-2's order begins: bytes by their characters.
constexpr std::array<int32_t, 256> kByteIds = [] {
  std::array<int32_t, 256> ids{};
  for (int byte = 0; byte < 256; ++byte) {
    ids[byte] = static_cast<int32_t>(std::count_if(kByteCharacters.begin(), kByteCharacters.end(),
                                                   [&](uint16_t c) { return c < kByteCharacters[byte]; }));
  }
  return ids;
}();

/// Bytes as characters, in UTF-8.
std::string to_characters(std::string_view bytes);

/// Characters, in UTF-8, as bytes; nothing if one of them stands for no byte.
std::optional<std::string> from_characters(std::string_view characters);

}  // namespace tapehead
