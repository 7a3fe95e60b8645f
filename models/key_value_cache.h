// Keys and values of the positions that a model has read, so that it reads only what comes after them.
//
//   const NoGradGuard no_grad;
//   KeyValueCache cache(model);
//   Tensor h = model.hidden(prompt, {.cache = &cache});           // (1, T, F): positions 0 to T - 1
//   while (...) h = model.hidden(next_token, {.cache = &cache});  // (1, 1, F): the next position
#pragma once

#include <utility>
#include <vector>

#include "tapehead/core/tensor.h"

namespace tapehead {

class LanguageModel;

class KeyValueCache {
 public:
  /// For up to n_positions positions of `rows` sequences, in the model's dtype and on its
  /// device. Room for positions grows with what it holds, twofold each time, and takes 2 ·
  /// n_layer · rows · kv_heads · room · head_width numbers, counted in the scope
  /// "key_value_cache"; while it grows, one layer's of before besides. Throws ValueError
  /// unless rows >= 1.
  explicit KeyValueCache(const LanguageModel& model, int64_t rows = 1);

  int64_t rows() const { return rows_; }
  /// How many positions it holds: those of all calls so far.
  int64_t length() const { return length_; }
  /// Forgets all but the first `length` positions, and keeps their memory: the next call
  /// goes on from there. Throws ValueError unless 0 <= length <= length().
  void truncate(int64_t length);

  // ---- For models.

  /// Throws ValueError unless ids (rows, T) fit behind what it holds, RuntimeError while
  /// grad mode is on: gradients do not reach what was kept.
  void check_room(const Tensor& ids) const;
  /// Keeps a layer's keys and values (rows, G, T, D) of the positions that follow;
  /// returns views of all of them, (rows, G, length() + T, D).
  std::pair<Tensor, Tensor> append(size_t layer, const Tensor& k, const Tensor& v);
  /// All layers have kept T positions more.
  void advance(int64_t T) { length_ += T; }

 private:
  void grow(Tensor& kept, int64_t positions) const;

  int64_t rows_, capacity_, length_ = 0;
  std::vector<std::pair<Tensor, Tensor>> layers_;  // (rows, G, room, D)
};

}  // namespace tapehead
