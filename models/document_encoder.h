// Encodes the parts of documents on all threads, and writes their tokens in the order of the parts.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tapehead/models/documents.h"
#include "tapehead/models/stream_writer.h"
#include "tapehead/models/tokenizer.h"

namespace tapehead {

/// What a source's documents become. The tokens of a text are those of the whole text; those of a prompt and
/// of its completion are made apart. A document begins with the beginning of text, if the tokenizer has one,
/// and ends with the end of text. Memory: about 10 MiB a thread, as long as texts have places to be cut at
/// (last_safe_cut) and lines of JSON are shorter.
class DocumentEncoder {
 public:
  /// The tokens go to `training`, those held out to `held_out`, which may be null if no part is. All must
  /// outlive it.
  DocumentEncoder(const Tokenizer& tokenizer, StreamWriter* training, StreamWriter* held_out);

  /// ValueError and SystemError of the tokenizer and the writers, here and below.
  void take(const DocumentPart& part);
  /// Encodes and writes what is left. To be called once, when there are no more parts.
  void finish();

 private:
  // What is encoded at once.
  struct Piece {
    std::string text;
    bool prompt, held_out, ends;
  };
  // Training or held-out: text that was not yet cut into pieces, and how many tokens of the present document
  // are a prompt.
  struct Side {
    StreamWriter* writer;
    std::string text;
    int64_t prompt = 0;
    bool begins = true;  // no token of the present document was written
  };

  void cut(Side& side, int64_t fresh, bool held_out);
  void add_piece(Piece piece);
  void write_pieces();

  const Tokenizer& tokenizer_;
  std::array<Side, 2> sides_;  // by held_out
  std::vector<Piece> pieces_;
  int64_t bytes_ = 0;  // of pieces_
};

}  // namespace tapehead
