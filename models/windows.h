// Rows of a batch: stretches of tokens, as long as the context, and the tokens that follow them.
//
// A stream of n tokens is cut into windows of T inputs: window w reads tokens wT .. wT + T - 1 and predicts
// wT + 1 .. wT + T. So every token but the first is a target exactly once. The last window
// may be shorter: its missing targets are kIgnoredTarget. Documents are cut as they come.
//
// Where documents have prompts, one that fits into a window is kept whole, so that no completion is
// without its prompt: a document with a prompt begins a new window if it does not fit into what is left.
// A longer one is cut. Tokens of prompts are never targets, and windows without any target are left out.
#pragma once

#include <span>
#include <vector>

#include "tapehead/core/tensor.h"
#include "tapehead/models/dataset.h"

namespace tapehead {

/// The target that counts for nothing: what training gives linear_cross_entropy as its ignore_index.
constexpr int64_t kIgnoredTarget = -100;

/// On the default device.
struct Batch {
  Tensor ids;      ///< (B, T) i64
  Tensor targets;  ///< (B, T) i64: the tokens that follow, or kIgnoredTarget
  /// (B, T) i64: the first position of the row that belongs to the same document, for
  /// attention that stays within it. Undefined where all of the row may be seen.
  Tensor first_seen;
  int64_t target_tokens = 0;             ///< how many targets count
  std::vector<int64_t> row_tokens = {};  ///< of each row
};

/// The windows of a dataset, numbered from 0 on, stream after stream. Memory: nothing for
/// streams without prompts, 16 bytes a window for others. `data` must outlive it.
class Windows {
 public:
  /// `within_documents`: batches say where each position's document begins. ValueError unless context >= 1.
  Windows(const Dataset& data, int64_t context, bool within_documents = false);

  int64_t size() const { return first_.back(); }
  /// Stream `index` has windows first(index) .. first(index + 1) - 1.
  int64_t first(size_t index) const { return first_[index]; }

  /// A row for each of these windows. ValueError outside 0 .. size() - 1, and the errors
  /// of TokenStream::copy.
  Batch read(std::span<const int64_t> windows) const;
  /// The windows first .. first + count - 1.
  Batch read(int64_t first, int64_t count) const;

 private:
  struct Place {
    int64_t begin, count;  // inputs
  };

  void place_windows(const TokenStream& stream, std::vector<Place>* places) const;
  int64_t read_row(int64_t window, int64_t* ids, int64_t* targets, int64_t* first_seen) const;

  const Dataset* data_;
  int64_t context_;
  bool within_documents_;
  std::vector<int64_t> first_;              // by stream, and the end
  std::vector<std::vector<Place>> places_;  // by stream; empty where windows follow without gaps
};

}  // namespace tapehead
