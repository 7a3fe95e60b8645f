#include "tapehead/models/byte_characters.h"

namespace tapehead {
namespace {

// Two UTF-8 bytes hold every character above ASCII here.
constexpr int kNoByte = -1;
constexpr std::array<int, 0x800> kBytesOfCharacters = [] {
  std::array<int, 0x800> bytes{};
  bytes.fill(kNoByte);
  for (int byte = 0; byte < 256; ++byte) {
    bytes[kByteCharacters[byte]] = byte;
  }
  return bytes;
}();

}  // namespace

std::string to_characters(std::string_view bytes) {
  std::string characters;
  for (const char byte : bytes) {
    const uint16_t character = kByteCharacters[static_cast<unsigned char>(byte)];
    if (character < 0x80) {
      characters += static_cast<char>(character);
    } else {
      characters += static_cast<char>(0xC0 | character >> 6);
      characters += static_cast<char>(0x80 | (character & 0x3F));
    }
  }
  return characters;
}

std::optional<std::string> from_characters(std::string_view characters) {
  std::string bytes;
  for (size_t i = 0; i < characters.size(); ++i) {
    int character = static_cast<unsigned char>(characters[i]);
    if (character >= 0x80) {
      if (character < 0xC0 || character > 0xDF || i + 1 == characters.size()) {
        return std::nullopt;
      }
      character = (character & 0x1F) << 6 | (static_cast<unsigned char>(characters[++i]) & 0x3F);
    }
    const int byte = kBytesOfCharacters[character];
    if (byte == kNoByte) {
      return std::nullopt;
    }
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

}  // namespace tapehead
