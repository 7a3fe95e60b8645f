#include "tapehead/models/text.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/core/random.h"

namespace tapehead {
namespace {

// The text cut at line ends, `lines` lines a block.
std::vector<std::string_view> cut_into_blocks(std::string_view text, int64_t lines) {
  std::vector<std::string_view> blocks;
  while (!text.empty()) {
    size_t end = 0;
    for (int64_t line = 0; line < lines && end < text.size(); ++line) {
      const size_t line_end = text.find('\n', end);
      end = line_end == std::string_view::npos ? text.size() : line_end + 1;
    }
    blocks.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return blocks;
}

}  // namespace

std::string read_text(const std::string& path) {
  std::string text = read_file(path);
  check<ValueError>(!text.empty(), "[read_text] {} is empty; there is nothing to learn from it", path);
  return text;
}

TextSplit split_held_out(std::string_view text, double fraction, uint64_t seed) {
  check<ValueError>(0 < fraction && fraction < 1,
                    "[split_held_out] fraction is {}, but must be between 0 and 1", fraction);
  const int64_t line_ends = std::count(text.begin(), text.end(), '\n');
  const std::vector<std::string_view> blocks =
      cut_into_blocks(text, std::clamp<int64_t>(line_ends / 200, 1, 50));

  // Draws without replacement: the first blocks of a Fisher-Yates shuffle (Knuth, TAOCP 2, algorithm 3.4.2P).
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::vector<bool> held(blocks.size());
  Generator random{seed};
  const double wanted = fraction * static_cast<double>(text.size());
  size_t held_bytes = 0;
  for (size_t drawn = 0; static_cast<double>(held_bytes) < wanted; ++drawn) {
    std::swap(order[drawn], order[drawn + random.below(order.size() - drawn)]);
    held[order[drawn]] = true;
    held_bytes += blocks[order[drawn]].size();
  }
  check<ValueError>(
      held_bytes < text.size(),
      "[split_held_out] {} of a text of {} bytes in {} blocks of lines leaves nothing to train on; hold "
      "out less, or give a text of more lines",
      fraction, text.size(), blocks.size());

  TextSplit split;
  split.training.reserve(text.size() - held_bytes);
  split.held_out.reserve(held_bytes);
  for (size_t block = 0; block < blocks.size(); ++block) {
    (held[block] ? split.held_out : split.training) += blocks[block];
  }
  return split;
}

}  // namespace tapehead
