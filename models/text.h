// Text to train on: reading it, keeping some of it from training, and cutting it without changing its tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tapehead {

/// A text file, as bytes. ValueError if it is missing, a folder or empty; SystemError if it cannot be read.
std::string read_text(const std::string& path);

/// Consecutive lines: bytes begin .. end - 1 of a text.
struct TextBlock {
  int64_t begin, end;
  bool held_out;  ///< to measure on what training never saw
};

/// Cuts `text` into blocks of consecutive lines, of which some, drawn by `seed`, are held out, until they are
/// at least `fraction` of its bytes; together the blocks are all of the text, in its order. A block has 50
/// lines, so that most of it is read in its own context; fewer where the text would have less than 200
/// blocks. The same on every machine. ValueError unless 0 < fraction < 1, and unless there are lines enough
/// to leave something on both sides.
///   on_read   told now and then how many bytes were read; lines are counted, and then cut, so from 0 on
///             twice
std::vector<TextBlock> split_held_out(std::string_view text, double fraction = 0.05, uint64_t seed = 0,
                                      const std::function<void(int64_t end)>& on_read = {});

/// The last place, behind byte `from`, at which `text` may be cut: whatever stands before and behind it, both
/// sides have together the pieces of the whole (pretokenizer.h), and so its tokens. 0 if there is none.
///
/// Such a place is before a space, or behind a line feed, that has no other white space beside it. There
/// every rule ends a piece: white space begins a piece or follows punctuation in one, and a single white
/// space is what a rule makes of it whether the text ends there or not. (A token added to a vocabulary for a
/// text with such a place in it, "New York" say, would be the exception.)
int64_t last_safe_cut(std::string_view text, int64_t from = 0);

}  // namespace tapehead
