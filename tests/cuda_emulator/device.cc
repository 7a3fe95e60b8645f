#include "tapehead/tests/cuda_emulator/device.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "tapehead/tests/cuda_emulator/sanitizer.h"

namespace cuda_emulator {

static constexpr size_t kAlignment = 256;                // cudaMalloc's
static constexpr size_t kArenaBytes = size_t{64} << 30;  // of addresses, not of memory
static constexpr size_t kHugePage = 2 << 20;             // fewer to open and to close
static constexpr int kUnset = 0xff;                      // of floats it makes NaN

Device& device() {
  static Device* d = new Device;  // kept: tensors in static storage are freed late
  return *d;
}

cudaError_t Device::finish(cudaError_t status) {
  if (sticky != cudaSuccess) status = sticky;
  if (status != cudaSuccess) last = status;
  return status;
}

void reset(const Settings& settings) {
  const Lock lock;
  device().settings = settings;
  device().random = Random(settings.seed);
  device().sticky = device().last = cudaSuccess;
  device().problem.clear();
}

std::string last_problem() {
  const Lock lock;
  return device().problem;
}

size_t memory_in_use() {
  const Lock lock;
  return device().memory.in_use();
}

int64_t launches() {
  const Lock lock;
  return device().launches;
}

int64_t waits() {
  const Lock lock;
  return device().waits;
}

// AddressSanitizer watches the bounds of what malloc gives;
// without it, one range of addresses is opened and closed at once.
void* Memory::allocate(size_t bytes, size_t limit) {
  if (bytes == 0 || bytes > limit || in_use_ > limit - bytes) return nullptr;
  char* memory = nullptr;
#ifdef CUDA_EMULATOR_ASAN
  void* block = nullptr;
  if (posix_memalign(&block, kAlignment, bytes) != 0) return nullptr;
  memory = static_cast<char*>(block);
  std::memset(memory, kUnset, bytes);
  poison(memory, bytes);
#else
  if (!arena_) {
    void* range =
        mmap(nullptr, kArenaBytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) return nullptr;
    arena_ =
        reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(range) + kHugePage - 1) / kHugePage * kHugePage);
    madvise(arena_, kArenaBytes, MADV_HUGEPAGE);  // a wish: refused, pages stay small
  }
  char* gap = arena_;  // the first that is large enough
  for (const auto& [begin, size] : blocks_) {
    if (static_cast<size_t>(begin - gap) >= bytes) break;
    gap = begin + (size + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (static_cast<size_t>(gap - arena_) + bytes > kArenaBytes) return nullptr;
  memory = gap;
  const size_t reach = static_cast<size_t>(gap - arena_) + bytes;
  reach_ = std::max(reach_, (reach + kHugePage - 1) / kHugePage * kHugePage);
  open();
  std::memset(memory, kUnset, bytes);
  close();
#endif
  blocks_.emplace(memory, bytes);
  in_use_ += bytes;
  return memory;
}

bool Memory::free(void* memory) {
  const auto found = blocks_.find(static_cast<char*>(memory));
  if (found == blocks_.end()) return false;
  in_use_ -= found->second;
#ifdef CUDA_EMULATOR_ASAN
  unpoison(memory, found->second);
  std::free(memory);
#endif
  blocks_.erase(found);
  return true;
}

bool Memory::contains(const void* p, size_t bytes) const {
  const auto* begin = static_cast<const char*>(p);
  auto block = blocks_.upper_bound(const_cast<char*>(begin));
  if (block == blocks_.begin()) return false;
  --block;
  const auto offset = static_cast<size_t>(begin - block->first);
  return offset <= block->second && bytes <= block->second - offset;
}

void Memory::open() {
#ifdef CUDA_EMULATOR_ASAN
  for (const auto& [begin, size] : blocks_) unpoison(begin, size);
#else
  if (reach_ > 0) mprotect(arena_, reach_, PROT_READ | PROT_WRITE);
#endif
}

void Memory::close() {
#ifdef CUDA_EMULATOR_ASAN
  for (const auto& [begin, size] : blocks_) poison(begin, size);
#else
  if (reach_ > 0) mprotect(arena_, reach_, PROT_NONE);
#endif
}

}  // namespace cuda_emulator
