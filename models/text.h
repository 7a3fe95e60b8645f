// Text to train on: reading it, and keeping some of it from training.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tapehead {

/// A text file, as bytes. ValueError if it is missing, a folder or empty; SystemError if it cannot be read.
std::string read_text(const std::string& path);

struct TextSplit {
  std::string training;
  std::string held_out;  ///< to measure on what training never saw
};

/// Takes blocks of consecutive lines out of `text`, drawn by `seed`, until at least `fraction` of its bytes
/// are held out; both parts keep the order of the text, and together they are all of it. A block has 50
/// lines, so that most of it is read in its own context; fewer where the text would have less than 200
/// blocks. The same on every machine. ValueError unless 0 < fraction < 1, and unless there are lines enough
/// to leave something on both sides.
TextSplit split_held_out(std::string_view text, double fraction = 0.05, uint64_t seed = 0);

}  // namespace tapehead
