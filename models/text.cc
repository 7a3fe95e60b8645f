#include "tapehead/models/text.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/core/random.h"

namespace tapehead {
namespace {

constexpr int64_t kPart = 1 << 22;  // bytes between two calls of on_read

int64_t count_line_ends(std::string_view text, const std::function<void(int64_t)>& on_read) {
  int64_t count = 0;
  const auto size = std::ssize(text);
  for (int64_t begin = 0; begin < size; begin += kPart) {
    const int64_t end = std::min(begin + kPart, size);
    count += std::count(text.begin() + begin, text.begin() + end, '\n');
    if (on_read) on_read(end);
  }
  return count;
}

// The text cut at line ends, `lines` lines a block.
std::vector<TextBlock> cut_into_blocks(std::string_view text, int64_t lines,
                                       const std::function<void(int64_t)>& on_read) {
  std::vector<TextBlock> blocks;
  const auto size = std::ssize(text);
  int64_t told = 0;
  for (int64_t begin = 0, end = 0; begin < size; begin = end) {
    for (int64_t line = 0; line < lines && end < size; ++line) {
      const size_t line_end = text.find('\n', static_cast<size_t>(end));
      end = line_end == std::string_view::npos ? size : static_cast<int64_t>(line_end) + 1;
    }
    blocks.push_back({begin, end, false});
    if (on_read && end - told >= kPart) on_read(told = end);
  }
  return blocks;
}

// Unicode's White_Space beyond ASCII, in UTF-8.
bool is_wide_space(std::string_view character) {
  if (character.size() == 2) return character == "\xC2\x85" || character == "\xC2\xA0";
  if (character == "\xE1\x9A\x80" || character == "\xE2\x81\x9F" || character == "\xE3\x80\x80") return true;
  const auto last = static_cast<unsigned char>(character.back());
  return character.starts_with("\xE2\x80") && (last <= 0x8A || last == 0xA8 || last == 0xA9 || last == 0xAF);
}

bool is_space(char byte) { return byte == ' ' || ('\t' <= byte && byte <= '\r'); }

// Whether the character that ends before `place` is there and no white space.
bool solid_before(std::string_view text, int64_t place) {
  if (place == 0 || is_space(text[static_cast<size_t>(place - 1)])) return false;
  const std::string_view before = text.substr(0, static_cast<size_t>(place));
  return !(place >= 2 && is_wide_space(before.substr(before.size() - 2))) &&
         !(place >= 3 && is_wide_space(before.substr(before.size() - 3)));
}

// The same for the one that begins at `place`.
bool solid_behind(std::string_view text, int64_t place) {
  const std::string_view behind = text.substr(static_cast<size_t>(place), 3);
  if (behind.empty() || is_space(behind[0])) return false;
  if (static_cast<unsigned char>(behind[0]) >= 0x80 && behind.size() < 3)
    return false;  // not all of it is there
  return behind.size() < 3 || !(is_wide_space(behind.substr(0, 2)) || is_wide_space(behind));
}

}  // namespace

std::string read_text(const std::string& path) {
  std::string text = read_file(path);
  check<ValueError>(!text.empty(), "[read_text] {} is empty; there is nothing to learn from it", path);
  return text;
}

std::vector<TextBlock> split_held_out(std::string_view text, double fraction, uint64_t seed,
                                      const std::function<void(int64_t)>& on_read) {
  check<ValueError>(0 < fraction && fraction < 1,
                    "[split_held_out] fraction is {}, but must be between 0 and 1", fraction);
  const int64_t lines = std::clamp<int64_t>(count_line_ends(text, on_read) / 200, 1, 50);
  std::vector<TextBlock> blocks = cut_into_blocks(text, lines, on_read);

  // Draws without replacement: the first blocks of a Fisher-Yates shuffle (Knuth, TAOCP 2, algorithm 3.4.2P).
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  Generator random{seed};
  const double wanted = fraction * static_cast<double>(text.size());
  int64_t held_bytes = 0;
  for (size_t drawn = 0; static_cast<double>(held_bytes) < wanted; ++drawn) {
    std::swap(order[drawn], order[drawn + random.below(order.size() - drawn)]);
    TextBlock& block = blocks[order[drawn]];
    block.held_out = true;
    held_bytes += block.end - block.begin;
  }
  check<ValueError>(
      held_bytes < std::ssize(text),
      "[split_held_out] {} of a text of {} bytes in {} blocks of lines leaves nothing to train on; hold "
      "out less, or give a text of more lines",
      fraction, text.size(), blocks.size());
  return blocks;
}

int64_t last_safe_cut(std::string_view text, int64_t from) {
  for (int64_t place = std::ssize(text) - 1; place > from; --place) {
    if (text[static_cast<size_t>(place)] == ' ' && solid_before(text, place) && solid_behind(text, place + 1))
      return place;
    if (text[static_cast<size_t>(place - 1)] == '\n' && solid_before(text, place - 1) &&
        solid_behind(text, place))
      return place;
  }
  return 0;
}

}  // namespace tapehead
