#include "tapehead/models/key_value_cache.h"

#include <algorithm>

#include "tapehead/core/memory.h"
#include "tapehead/core/view.h"
#include "tapehead/models/language_model.h"

namespace tapehead {

KeyValueCache::KeyValueCache(const LanguageModel& model, int64_t rows)
    : rows_(rows), capacity_(model.config().n_positions) {
  check<ValueError>(rows >= 1, "[key_value_cache] {} rows: there must be at least 1", rows);
  const ModelConfig& config = model.config();
  const Shape nothing{rows, config.kv_heads(), 0, config.head_width()};
  for (int64_t layer = 0; layer < config.n_layer; ++layer) {
    layers_.emplace_back(Tensor(nothing, model.dtype(), model.device()),
                         Tensor(nothing, model.dtype(), model.device()));
  }
}

void KeyValueCache::truncate(int64_t length) {
  check<ValueError>(length >= 0 && length <= length_,
                    "[key_value_cache] truncate to {} positions: it holds {}", length, length_);
  length_ = length;
}

void KeyValueCache::check_room(const Tensor& ids) const {
  check<RuntimeError>(
      !grad_enabled(),
      "[key_value_cache] grad mode is on, but gradients do not reach kept keys and values: use a "
      "NoGradGuard");
  check<ValueError>(ids.dim() == 2 && ids.size(0) == rows_,
                    "[key_value_cache] ids of shape {} for a cache of {} rows", ids.shape(), rows_);
  check<ValueError>(
      length_ + ids.size(1) <= capacity_,
      "[key_value_cache] it is full: it holds {} of {} positions, and {} more came; truncate it and read the "
      "text's end again",
      length_, capacity_, ids.size(1));
}

// Makes room for so many positions, or for twice as many as before: each position is copied once, on average.
void KeyValueCache::grow(Tensor& kept, int64_t positions) const {
  if (positions <= kept.size(2)) return;
  const MemoryScope scope("key_value_cache");
  Tensor larger(
      {rows_, kept.size(1), std::min(std::max(positions, 2 * kept.size(2)), capacity_), kept.size(3)},
      kept.dtype(), kept.device());
  slice(larger, 2, 0, length_).copy_from(slice(kept, 2, 0, length_));
  kept = larger;
}

std::pair<Tensor, Tensor> KeyValueCache::append(size_t layer, const Tensor& k, const Tensor& v) {
  auto& [keys, values] = layers_.at(layer);
  const int64_t end = length_ + k.size(2);
  grow(keys, end);
  grow(values, end);
  slice(keys, 2, length_, end).copy_from(k);
  slice(values, 2, length_, end).copy_from(v);
  return {slice(keys, 2, 0, end), slice(values, 2, 0, end)};
}

}  // namespace tapehead
