#include "tapehead/models/content_hash.h"

#include <xxhash.h>

#include <algorithm>
#include <new>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"

namespace tapehead {

void ContentHash::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

ContentHash::ContentHash() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_128bits_reset(state_.get());
}

static void add_size(XXH3_state_s* state, uint64_t size) { XXH3_128bits_update(state, &size, sizeof(size)); }

void ContentHash::add(std::string_view bytes) {
  add_size(state_.get(), bytes.size());
  XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

void ContentHash::add_file(const std::string& path, const std::function<void(int64_t)>& on_read) {
  constexpr int64_t kPart = 1 << 20;
  MappedFile file(path);
  const auto size = std::ssize(file.bytes());
  add_size(state_.get(), static_cast<uint64_t>(size));
  for (int64_t begin = 0; begin < size; begin += kPart) {
    const int64_t count = std::min(kPart, size - begin);
    XXH3_128bits_update(state_.get(), file.bytes().data() + begin, static_cast<size_t>(count));
    file.release_before(begin + count);
    if (on_read) on_read(count);
  }
}

std::string ContentHash::digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace tapehead
