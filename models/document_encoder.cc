#include "tapehead/models/document_encoder.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "tapehead/core/parallel.h"
#include "tapehead/models/text.h"

namespace tapehead {
namespace {

constexpr int64_t kPiece = 1 << 19;  // bytes of text; documents may be shorter
// So many wait for each thread, so that all have work until nearly the end.
constexpr int64_t kPiecesPerThread = 4;

}  // namespace

DocumentEncoder::DocumentEncoder(const Tokenizer& tokenizer, StreamWriter* training, StreamWriter* held_out)
    : tokenizer_(tokenizer), sides_{Side{training, {}}, Side{held_out, {}}} {}

void DocumentEncoder::take(const DocumentPart& part) {
  Side& side = sides_[part.held_out];
  const auto before = std::ssize(side.text);
  side.text += part.text;
  if (part.prompt || part.ends) {
    add_piece({std::exchange(side.text, {}), part.prompt, part.held_out, part.ends});
  } else if (std::ssize(side.text) >= kPiece) {
    cut(side, before, part.held_out);
  }
}

// Makes a piece of all that may be cut off; bytes from `fresh` on were not looked at before.
void DocumentEncoder::cut(Side& side, int64_t fresh, bool held_out) {
  // A place needs the character behind it, of up to three bytes.
  const int64_t end = last_safe_cut(side.text, std::max<int64_t>(fresh - 4, 0));
  if (end == 0) return;
  std::string rest = side.text.substr(static_cast<size_t>(end));
  side.text.resize(static_cast<size_t>(end));
  add_piece({std::exchange(side.text, std::move(rest)), false, held_out, false});
}

void DocumentEncoder::add_piece(Piece piece) {
  bytes_ += std::ssize(piece.text) + static_cast<int64_t>(sizeof(Piece));
  pieces_.push_back(std::move(piece));
  if (bytes_ >= kPiece * kPiecesPerThread * omp_get_max_threads()) write_pieces();
}

void DocumentEncoder::write_pieces() {
  std::vector<std::vector<int32_t>> tokens(pieces_.size());
  // Pieces are of many lengths: whichever thread is free takes the next.
  std::atomic<size_t> next = 0;
  parallel_for(std::min<int64_t>(omp_get_max_threads(), std::ssize(pieces_)), 1, [&](int64_t, int64_t) {
    Tokenizer::Encoder encoder(tokenizer_);
    for (size_t i; (i = next++) < pieces_.size();) encoder.encode(pieces_[i].text, &tokens[i]);
  });
  for (size_t i = 0; i < pieces_.size(); ++i) {
    Side& side = sides_[pieces_[i].held_out];
    const int64_t before = side.writer->size();
    if (const auto begin = tokenizer_.beginning_of_text(); begin && side.begins)
      side.writer->append({&*begin, 1});
    side.writer->append(tokens[i]);
    if (pieces_[i].prompt) side.prompt += side.writer->size() - before;
    side.begins = pieces_[i].ends;
    if (!pieces_[i].ends) continue;
    const int32_t end_of_text = tokenizer_.end_of_text();
    side.writer->append({&end_of_text, 1});
    side.writer->end_document(std::exchange(side.prompt, 0));
  }
  pieces_.clear();
  bytes_ = 0;
}

void DocumentEncoder::finish() {
  for (const bool held_out : {false, true}) {
    std::string& text = sides_[held_out].text;
    if (!text.empty()) add_piece({std::move(text), false, held_out, false});
  }
  write_pieces();
}

}  // namespace tapehead
