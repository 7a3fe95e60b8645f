// The tokens of pieces that were met before: most of a text.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace tapehead {

/// Remembers short pieces, each in the one slot that its hash names, where the next with that slot replaces
/// it. It begins small, so that a short text pays little for it, and grows to 2 MiB as pieces are kept. Not
/// thread-safe.
class PieceCache {
 public:
  /// The tokens of a piece, if it is remembered; valid until the next keep().
  std::optional<std::span<const int32_t>> find(std::string_view piece) const {
    const Slot& slot = slots_[slot_of(piece)];
    if (slot.size != piece.size() || std::memcmp(slot.piece.data(), piece.data(), piece.size()) != 0) {
      return std::nullopt;
    }
    return std::span(slot.ids).first(slot.count);
  }

  /// Remembers the tokens of a piece, unless it is too long. No piece is empty.
  void keep(std::string_view piece, std::span<const int32_t> ids) {
    if (piece.size() > kMaxBytes || ids.size() > kMaxIds) {
      return;
    }
    if (++kept_ > slots_.size() && slots_.size() < kMaxSlots) {
      slots_.assign(8 * slots_.size(), {});
      kept_ = 1;
    }
    Slot& slot = slots_[slot_of(piece)];
    slot.size = static_cast<uint8_t>(piece.size());
    slot.count = static_cast<uint8_t>(ids.size());
    std::ranges::copy(piece, slot.piece.begin());
    std::ranges::copy(ids, slot.ids.begin());
  }

 private:
  static constexpr size_t kMaxBytes = 30;
  static constexpr size_t kMaxIds = 8;
  static constexpr size_t kMaxSlots = 1 << 15;

  struct alignas(64) Slot {  // a cache line
    uint8_t size = 0;
    uint8_t count = 0;
    std::array<char, kMaxBytes> piece;
    std::array<int32_t, kMaxIds> ids;
  };

  size_t slot_of(std::string_view piece) const {
    return std::hash<std::string_view>()(piece) & (slots_.size() - 1);
  }

  std::vector<Slot> slots_ = std::vector<Slot>(64);
  size_t kept_ = 0;
};

}  // namespace tapehead
